"""``Precision``: the dtype in which a training keeps its weights and computes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_MIXED = "-mixed"
NAMES = (*_DTYPES, "bfloat16-mixed", "float16-mixed")


@dataclass(frozen=True)
class Precision:
    """How a training computes.

    Attributes:
        weights: the dtype of the parameters; ``None`` for that of the model.
        autocast: the dtype of ``torch.autocast`` around the forward; ``None`` without it.
    """

    weights: torch.dtype | None
    autocast: torch.dtype | None

    def of(self, model: nn.Module) -> nn.Module:
        """The model with parameters of this dtype, changed in place. Buffers are as before."""
        for module in model.modules() if self.weights is not None else ():
            for parameter in module.parameters(recurse=False):
                if parameter.is_floating_point():
                    parameter.data = parameter.data.to(self.weights)
        return model


def read_precision(dtype: object) -> Precision:
    """The precision of an argument ``dtype``: a name of ``NAMES``, a ``torch.dtype``, ``None``, or a precision itself.

    Raises:
        TypeError: it is none of these.
        ValueError: it is another name or dtype.
    """
    if isinstance(dtype, Precision):
        return dtype
    if dtype is None:
        return Precision(None, None)
    if not isinstance(dtype, str | torch.dtype):
        raise TypeError(f"dtype must be one of {', '.join(NAMES)}, or a torch.dtype of these, got {dtype!r}")
    name = str(dtype).removeprefix("torch.")
    if name not in NAMES:
        raise ValueError(
            f"dtype must be one of {', '.join(NAMES)}, got {name!r}; '-mixed' is torch.autocast over weights in float32"
        )
    narrow = _DTYPES[name.removesuffix(_MIXED)]
    return Precision(torch.float32, narrow) if name.endswith(_MIXED) else Precision(narrow, None)
