"""``SavedTensor`` and ``Policy``: what is known of a tensor that autograd saves, and the choice of its codec."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from actcore.codec import Codec


@dataclass(frozen=True)
class SavedTensor:
    """A description of a tensor that autograd is about to save; it holds no tensor.

    Its identity (module, operator, role, occurrence) is the same in every step, even if control flow changes.

    Attributes:
        shape, dtype, strides, device: of the tensor.
        operator: the call that saves it, such as ``"linear"``; empty if it is unknown.
        role: the tensor's role in that call: the name of an argument (``"input"``), ``"result"``, or ``"internal"`` for
            a tensor that the call made itself (a dropout mask, a norm's statistics).
        module: path of the module whose forward makes the call, from the root; empty for the root itself.
        occurrence: how many tensors with this module, operator and role were saved before in this forward.
        requires_grad: whether gradients flow to the tensor.
    """

    shape: torch.Size
    dtype: torch.dtype
    strides: tuple[int, ...]
    device: torch.device
    operator: str = ""
    role: str = ""
    module: str = ""
    occurrence: int = 0
    requires_grad: bool = False

    @classmethod
    def of(
        cls, tensor: Tensor, *, operator: str = "", role: str = "", module: str = "", occurrence: int = 0
    ) -> SavedTensor:
        """Return the description of ``tensor``. A tensor without strides (sparse, jagged) has none here."""
        strides = tuple(tensor.stride()) if tensor.layout is torch.strided else ()
        return cls(
            tensor.shape, tensor.dtype, strides, tensor.device, operator, role, module, occurrence, tensor.requires_grad
        )


Policy: TypeAlias = Callable[[SavedTensor], Codec]
"""Which codec a saved tensor gets: a pure function of its description."""
