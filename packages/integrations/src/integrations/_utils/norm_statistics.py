"""What torch's normalisations keep beside their input, for reports of layers that do not keep it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from actcore.stored import Absent


def compute_mean(x: Tensor, weight: Tensor | None, shape: Sequence[int]) -> Absent:
    """The mean, or the reciprocal deviation, of torch's layer and group norms, of this shape.

    On the CPU its dtype is the input's if the weight has that, too; otherwise it is one in which torch computes.
    """
    same = x.device.type == "cpu" and (weight is None or weight.dtype is x.dtype)
    return Absent.like(x, shape, x.dtype if same else torch.promote_types(x.dtype, torch.float32))


def compute_rms(x: Tensor, dims: int) -> Absent:
    """The reciprocal root of the mean square, over the last ``dims`` dimensions."""
    return Absent.like(x, statistic_shape(x, dims), torch.promote_types(x.dtype, torch.float32))


def rms_product(x: Tensor, weight: Tensor | None) -> tuple[Absent, ...]:
    """The normalised input. Torch multiplies it with the weight on the CPU, where it has no RMS norm of its own."""
    if x.device.type != "cpu" or weight is None or not weight.requires_grad:
        return ()
    return (Absent.like(x),)


def statistic_shape(x: Tensor, dims: int) -> tuple[int, ...]:
    """The shape of a statistic over the last ``dims`` dimensions."""
    return (*x.shape[: x.dim() - dims], *(1,) * dims)
