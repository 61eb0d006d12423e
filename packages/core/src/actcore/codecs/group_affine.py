"""``GroupAffine``: unbiased quantisation to 1..8 bits, group by group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from actcore.codec import as_int64, require_dtype, require_form, require_payload, require_strided
from actcore.codecs.raw import Raw
from actcore.compressed import Compressed
from actcore.layout import Layout
from actcore.ops import group_count, packed_bytes

Rounding = Literal["stochastic", "nearest"]
_ROUNDINGS = get_args(Rounding)
_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@dataclass(frozen=True)
class GroupAffine:
    """Stores each group of elements as its two bounds and a ``bits``-bit code an element.

    The quantiser of ActNN (Chen et al., ICML 2021) and GACT (Liu et al., ICML 2022). With ``step = (high - low) /
    (2**bits - 1)`` of an element's group:

    * stochastic rounding is unbiased: the mean over streams is the element, up to ``2**-9`` step (a rounding has 8
      random bits) and half a unit in the last place of the dtype at the group's largest value; the variance is at most
      ``step**2 / 4`` and no element moves by a step or more;
    * nearest rounding moves no element by more than half a step;
    * decompressed values never leave the group's bounds, which are kept exactly; a constant group is exact;
    * a group with a NaN or an infinity decompresses to NaN throughout.

    Groups run in memory order over the elements that are stored (``Layout``). The stored form takes
    ``ceil(bits * n / 8)`` bytes and two elements a group (8 bytes in float32); a tensor too small to gain from that is
    stored as a copy under ``Raw``.

    Args:
        bits: bits per element, 1 to 8.
        group_size: elements per group, a positive multiple of 32.
        rounding: ``"stochastic"`` (unbiased) or ``"nearest"`` (smallest error, biased).
    """

    bits: int = 4
    group_size: int = 256
    rounding: Rounding = "stochastic"

    def __post_init__(self) -> None:
        for name in ("bits", "group_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be an int, got {value!r}")
        if not 1 <= self.bits <= 8:
            raise ValueError(f"bits must be from 1 to 8, got {self.bits}; to keep a tensor exactly use actcore.Raw()")
        if self.group_size < 32 or self.group_size % 32:
            raise ValueError(f"group_size must be a positive multiple of 32, got {self.group_size}; the default is 256")
        if self.group_size >= 1 << 62:  # so that no sum with it overflows
            raise ValueError(f"group_size must be below 2**62, got {self.group_size}; the default is 256")
        if self.rounding not in _ROUNDINGS:
            raise ValueError(f"rounding must be one of {', '.join(_ROUNDINGS)}, got {self.rounding!r}")

    def stored_bytes(self, numel: int, dtype: torch.dtype) -> int:
        """Bytes of the payload for ``numel`` stored elements of ``dtype``."""
        return packed_bytes(numel, self.bits) + 2 * dtype.itemsize * group_count(numel, self.group_size)

    def compress(self, tensor: Tensor, *, seed: int = 0, stream: int = 0) -> Compressed:
        """``Float[Tensor, "..."] -> (codes: UInt8[ceil(bits*n/8)], bounds: Float[groups, 2])``."""
        require_strided(self, tensor)
        require_dtype(self, tensor, _DTYPES, "integers and masks have exact forms: actcore.Raw(), actcore.BitMask()")
        seed, stream = as_int64("seed", seed), as_int64("stream", stream)
        tensor = tensor.detach()
        layout = Layout.of(tensor)
        numel = layout.stored_numel
        if self.stored_bytes(numel, tensor.dtype) >= numel * tensor.dtype.itemsize:
            return Raw().compress(layout.restore(layout.flatten(tensor).clone()))
        codes, bounds = torch.ops.actcore.group_affine_compress(
            layout.flatten(tensor), self.bits, self.group_size, self.rounding == "stochastic", seed, stream
        )
        return Compressed(self, (codes, bounds), layout, tensor.dtype)

    def decompress(self, compressed: Compressed) -> Tensor:
        """The tensor, with the codec's rounding error."""
        require_form(self, compressed, _DTYPES)
        layout, dtype = compressed.layout, compressed.dtype
        numel = layout.stored_numel
        require_payload(
            compressed,
            (torch.uint8, packed_bytes(numel, self.bits)),
            (dtype, 2 * group_count(numel, self.group_size)),
        )
        codes, bounds = compressed.payload
        flat = torch.ops.actcore.group_affine_decompress(codes, bounds, numel, self.bits, self.group_size)
        return layout.restore(flat)
