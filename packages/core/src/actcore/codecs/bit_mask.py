"""``BitMask`` and ``Positive``: one bit an element."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from actcore.codec import made, require_dtype, require_form, require_payload, require_strided, stored_elements, trusted
from actcore.compiling import constant_when_traced
from actcore.compressed import Compressed
from actcore.dtypes import FLOATS, INTEGERS
from actcore.layout import Layout, stored_numel
from actcore.ops import Key, below_autograd, packed_bytes

_POSITIVE = torch.ops.actcore.positive_mask.default
_DECOMPRESS = torch.ops.actcore.bit_mask_decompress.default
_DTYPES = (*INTEGERS, *FLOATS)


@dataclass(frozen=True)
class BitMask:
    """Stores a tensor of two values exactly, in one bit per element: masks, one-hot rows, dropout's 0 and 1/(1-p).

    Every element is checked to be one of the two values: on the CPU at once, on CUDA by a flag on the device, whose
    failure surfaces at the next synchronization. Storing itself does not synchronize.

    Args:
        values: the two values, each exact in the tensor's dtype. 0.0 and -0.0 are different values.
    """

    values: tuple[float, float] = (0, 1)

    def __post_init__(self) -> None:
        if not isinstance(self.values, tuple) or not all(isinstance(value, int | float) for value in self.values):
            raise TypeError(f"values must be a tuple of two numbers, got {self.values!r}")
        if len(self.values) != 2 or not all(abs(value) <= sys.float_info.max for value in self.values):
            raise ValueError(f"values must be two finite numbers, got {self.values!r}")

    def compress(self, tensor: Tensor, *, seed: Key = 0, stream: Key = 0) -> Compressed:
        """``Tensor["..."] -> (mask: UInt8[ceil(n/8)],)``. ``seed`` and ``stream`` have no effect.

        In a bool tensor every byte other than 0 is true, as in torch.

        Raises:
            ValueError: a value of ``values`` is not exact in the dtype, or an element is neither of the two.
        """
        require_strided(self, tensor)
        require_dtype(self, tensor, _DTYPES, "keep it as it is: actcore.Raw()")
        if (strange := _inexact(self.values, tensor.dtype)) is not None:
            raise ValueError(
                f"values of {self!r} must be exact in {tensor.dtype}, got {strange}, which is not; use values that "
                "the dtype represents"
            )
        layout = Layout.of(tensor)
        mask, misfit = below_autograd(
            torch.ops.actcore.bit_mask_compress.default, stored_elements(layout, tensor), *self.values
        )
        if tensor.dtype != torch.bool or self.values[0] == self.values[1]:  # a bool is one of the two
            name = f"BitMask(values={self.values})"
            require_fit(
                misfit, f"{name} stores two values, but the tensor has an element of another value; use actcore.Raw()"
            )
        return made(self, (mask,), layout, tensor.dtype)

    def decompress(self, compressed: Compressed) -> Tensor:
        """Return the tensor, exactly."""
        if not trusted(self, compressed):
            self._require_sound(compressed)
        return _spread(compressed, *self.values)

    def _require_sound(self, compressed: Compressed) -> None:
        require_form(self, compressed, _DTYPES)
        if (strange := _inexact(self.values, compressed.dtype)) is not None:
            raise ValueError(
                f"values of {self!r} must be exact in {compressed.dtype}, got {strange}, which is not; "
                "it is damaged or truncated: store the tensor again"
            )
        _require_mask(compressed)


@dataclass(frozen=True)
class Positive:
    """Stores whether each element is positive, in one bit: the gradient of ReLU and leaky ReLU needs nothing else.

    Decompresses to 1 where the element is positive or NaN and to 0 elsewhere. ReLU's backward passes the gradient in
    exactly those places, so the gradient is exact. ``threshold_backward`` passes it at NaN, too; leaky ReLU's backward
    treats a NaN as negative, the only input at which its gradient differs.
    """

    def compress(self, tensor: Tensor, *, seed: Key = 0, stream: Key = 0) -> Compressed:
        """``Float[Tensor, "..."] -> (mask: UInt8[ceil(n/8)],)``. ``seed`` and ``stream`` have no effect."""
        require_strided(self, tensor)
        require_dtype(self, tensor, FLOATS, "keep it as it is: actcore.Raw()")
        layout = Layout.of(tensor)
        mask = below_autograd(_POSITIVE, stored_elements(layout, tensor))
        return made(self, (mask,), layout, tensor.dtype)

    def decompress(self, compressed: Compressed) -> Tensor:
        """Return 1 where the element was positive and 0 elsewhere, in the tensor's dtype, shape and strides."""
        if not trusted(self, compressed):
            require_form(self, compressed, FLOATS)
            _require_mask(compressed)
        return _spread(compressed, 0, 1)


def require_fit(misfit: Tensor, message: str) -> None:
    """Raises ``ValueError`` if the flag is set; on CUDA and in compiled code asserts it, without waiting."""
    if misfit.device.type == "cpu" and not torch.compiler.is_compiling():
        if not isinstance(misfit, FakeTensor) and misfit.item():  # a fake tensor has no elements to look at
            raise ValueError(message)
    elif misfit.device.type != "meta":
        torch._assert_async(misfit == 0, message)


@constant_when_traced
def _inexact(values: tuple[float, float], dtype: torch.dtype) -> float | None:
    return _first_inexact(values, dtype)


@lru_cache(maxsize=256)
def _first_inexact(values: tuple[float, float], dtype: torch.dtype) -> float | None:
    """The first value that ``dtype`` cannot hold, if any."""
    for value in values:
        if torch.tensor(float(value), dtype=torch.float64).to(dtype).item() != value:
            return value
    return None


def _require_mask(compressed: Compressed) -> None:
    require_payload(compressed, (torch.uint8, packed_bytes(stored_numel(compressed.layout), 1)))


def _spread(compressed: Compressed, low: float, high: float) -> Tensor:
    layout = compressed.layout
    numel = stored_numel(layout)
    flat = below_autograd(_DECOMPRESS, compressed.payload[0], numel, compressed.dtype, low, high)
    return layout.restore(flat)
