"""``Narrow``: integers of a known range, exactly, in the fewest bits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from actcore.codec import DAMAGED, require_dtype, require_form, require_payload, require_strided
from actcore.codecs.bit_mask import require_fit
from actcore.codecs.raw import Raw
from actcore.compressed import Compressed
from actcore.dtypes import INTEGERS
from actcore.layout import Layout, stored_numel
from actcore.ops import Key, below_autograd, packed_bytes

_INT64 = torch.iinfo(torch.int64)


@dataclass(frozen=True)
class Narrow:
    """Stores integers from ``low`` to ``high`` exactly, in ``ceil(log2(high - low + 1))`` bits each: indices, labels.

    You give the range; it is never measured. Every element is checked to lie in it: on the CPU at once, on CUDA by a
    flag on the device, whose failure surfaces at the next synchronization. Storing itself does not synchronize.

    Only the part of the range that the tensor's dtype can hold counts. A range of one value takes no bytes. A tensor
    that gains nothing is stored as a copy under ``Raw``, after the same check.

    The payload is one uint8 tensor of ``ceil(bits * n / 8)`` bytes with the offsets from ``low``. Widths above 8 bits
    begin with the low bytes, one plane of n bytes each; the remaining 1 to 8 bits follow, packed as by ``pack_bits``.

    Args:
        low: the smallest value, a 64-bit int.
        high: the largest value, a 64-bit int, not below ``low``.
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be an int, got {value!r}")
            if not _INT64.min <= value <= _INT64.max:
                raise ValueError(f"{name} must fit in int64, got {value}")
        if self.low > self.high:
            raise ValueError(f"low must not be above high, got low={self.low} and high={self.high}")

    def compress(self, tensor: Tensor, *, seed: Key = 0, stream: Key = 0) -> Compressed:
        """``Int[Tensor, "..."] -> (packed: UInt8[ceil(bits*n/8)],)``. ``seed`` and ``stream`` have no effect.

        Raises:
            ValueError: an element is out of the range, or the dtype has no value in it.
        """
        require_strided(self, tensor)
        require_dtype(self, tensor, INTEGERS, "floats have forms of their own: actcore.GroupAffine(), actcore.Raw()")
        low, high = self._within(tensor.dtype)
        if low > high:
            raise ValueError(f"the range of {self!r} has no value of {tensor.dtype}; pass the range of the tensor")
        layout = Layout.of(tensor)
        flat = layout.flatten(tensor)
        packed, misfit = below_autograd(torch.ops.actcore.narrow_compress.default, flat, low, high)
        # torch.compile traces no dataclass's repr, and up to torch 2.11 no text of an int that it has for a symbol.
        name = "Narrow" if torch.compiler.is_compiling() else repr(self)
        require_fit(misfit, f"{name} stores values from low to high, but an element is outside; pass a wider range")
        numel = stored_numel(layout)
        if packed_bytes(numel, (high - low).bit_length()) >= numel * tensor.dtype.itemsize:
            return Raw().compress(layout.restore(flat.clone()))
        return Compressed(self, (packed,), layout, tensor.dtype)

    def decompress(self, compressed: Compressed) -> Tensor:
        """Return the tensor, exactly."""
        require_form(self, compressed, INTEGERS)
        layout, dtype = compressed.layout, compressed.dtype
        low, high = self._within(dtype)
        if low > high:
            raise ValueError(f"{compressed!r} has a dtype that {self!r} does not store; {DAMAGED}")
        numel = stored_numel(layout)
        require_payload(compressed, (torch.uint8, packed_bytes(numel, (high - low).bit_length())))
        flat = below_autograd(
            torch.ops.actcore.narrow_decompress.default, compressed.payload[0], numel, dtype, low, high
        )
        return layout.restore(flat)

    def _within(self, dtype: torch.dtype) -> tuple[int, int]:
        """The range cut to what the dtype holds; empty (low above high) where they have nothing in common."""
        least, most = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
        return max(self.low, least), min(self.high, most)
