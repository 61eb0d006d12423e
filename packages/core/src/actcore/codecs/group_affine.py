"""``GroupAffine``: unbiased quantisation to 1..8 bits, group by group."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from actcore.codec import (
    Codec,
    made,
    noise_key,
    require_dtype,
    require_form,
    require_payload,
    require_strided,
    stored_elements,
    trusted,
    without_history,
)
from actcore.codecs.raw import Raw
from actcore.compressed import Compressed
from actcore.dtypes import FLOATS
from actcore.layout import Layout, stored_numel
from actcore.ops import Key, below_autograd, group_count, packed_bytes

Rounding = Literal["stochastic", "nearest"]

_ROUNDINGS = get_args(Rounding)
_COMPRESS = torch.ops.actcore.group_affine_compress
_COMPRESS_INT, _COMPRESS_TENSOR = _COMPRESS.default, _COMPRESS.tensor
_COMPRESS_CLAMPED = torch.ops.actcore.group_affine_clamped_compress.default
_DECOMPRESS = torch.ops.actcore.group_affine_decompress.default


def require_float(codec: Codec, tensor: Tensor) -> None:
    """Raises ``TypeError`` unless the tensor is one of floating-point numbers."""
    require_dtype(codec, tensor, FLOATS, "integers and masks have exact forms: actcore.Narrow, actcore.BitMask")


def require_bits(name: str, bits: int) -> None:
    """Raises unless ``bits`` is an int from 1 to 8."""
    if type(bits) is not int:
        raise TypeError(f"{name} must be an int, got {bits!r}")
    if not 1 <= bits <= 8:
        raise ValueError(f"{name} must be from 1 to 8, got {bits}; to keep a tensor exactly use actcore.Raw()")


def require_grouping(group_size: int, rounding: str) -> None:
    """Raises unless groups are a positive multiple of 32 and the rounding is known."""
    if type(group_size) is not int:
        raise TypeError(f"group_size must be an int, got {group_size!r}")
    if group_size < 32 or group_size % 32:
        raise ValueError(f"group_size must be a positive multiple of 32, got {group_size}; the default is 256")
    if group_size >= 1 << 62:  # so that no sum with it overflows
        raise ValueError(f"group_size must be below 2**62, got {group_size}; the default is 256")
    if rounding not in _ROUNDINGS:
        raise ValueError(f"rounding must be one of {', '.join(_ROUNDINGS)}, got {rounding!r}")


@dataclass(frozen=True)
class GroupAffine:
    """Stores each group of elements as its two bounds and one ``bits``-bit code per element.

    This is the quantizer of ActNN (Chen et al., ICML 2021) and GACT (Liu et al., ICML 2022). With
    ``step = (high - low) / (2**bits - 1)`` of an element's group:

    * stochastic rounding is unbiased: the mean over streams is the element, up to ``2**-9`` step (a rounding has 8
      random bits); the variance is at most ``step**2 / 4`` and no element moves by a step or more;
    * nearest rounding moves no element by more than half a step;
    * the rounding of the result to its dtype adds to all of these: half a unit in the last place at the group's largest
      value, which in bfloat16 is about one step of 8 bits;
    * decompressed values never leave the group's bounds, which are kept exactly; a constant group is exact;
    * a NaN or an infinity decompresses to NaN and uses up one code: the other elements of its group have one step fewer
      between their bounds. With one bit they become NaN, too, unless they are all equal.

    Groups run in memory order over the stored elements (``Layout``). The stored form takes ``ceil(bits * n / 8)`` bytes
    and two elements per group (8 bytes in float32); a tensor too small to gain is stored as a copy under ``Raw``.

    Args:
        bits: bits per element, 1 to 8.
        group_size: elements per group, a positive multiple of 32.
        rounding: ``"stochastic"`` (unbiased) or ``"nearest"`` (smallest error, biased).
    """

    bits: int = 4
    group_size: int = 256
    rounding: Rounding = "stochastic"

    def __post_init__(self) -> None:
        require_bits("bits", self.bits)
        require_grouping(self.group_size, self.rounding)

    def stored_bytes(self, numel: int, dtype: torch.dtype) -> int:
        """Return the bytes of the payload for ``numel`` stored elements of ``dtype``."""
        size = self.group_size  # as packed_bytes and group_count have it
        return (numel * self.bits + 7) // 8 + 2 * dtype.itemsize * ((numel + size - 1) // size)

    def compress(self, tensor: Tensor, *, seed: Key = 0, stream: Key = 0) -> Compressed:
        """``Float[Tensor, "..."] -> (codes: UInt8[ceil(bits*n/8)], bounds: Float[groups, 2])``."""
        require_strided(self, tensor)
        dtype = tensor.dtype
        if dtype not in FLOATS:
            require_float(self, tensor)
        key = noise_key(tensor, seed, stream)
        layout = Layout.of(tensor)
        elements = stored_elements(layout, tensor)
        numel = elements.numel()
        if self.stored_bytes(numel, dtype) >= numel * dtype.itemsize:
            return Raw().compress(layout.restore(layout.flatten(without_history(tensor)).clone()))
        operator = _COMPRESS_TENSOR if isinstance(key[0], Tensor) else _COMPRESS_INT
        payload = below_autograd(operator, elements, self.bits, self.group_size, self.rounding == "stochastic", *key)
        return made(self, payload, layout, dtype)

    def compress_clamped(
        self, tensor: Tensor, least: float, most: float, *, seed: Key = 0, stream: Key = 0
    ) -> Compressed:
        """Return the stored form of ``tensor.clamp(least, most)``: codes and bounds, as ``compress``.

        On the CPU and on CUDA a contiguous tensor is clamped while it is read, without a clamped copy.

        Args:
            tensor: of a floating-point dtype.
            least, most: finite bounds; elements beyond them, infinities included, are stored as the nearer bound.
            seed, stream: as in ``actcore.compress``.

        Raises:
            TypeError: as ``compress``.
            ValueError: a bound is not finite, or ``least`` is above ``most``.
        """
        if not -math.inf < least <= most < math.inf:
            raise ValueError(f"least and most must be finite, and least not above most, got {least} and {most}")
        numel = tensor.numel()
        plain = isinstance(seed, int) and isinstance(stream, int) and tensor.device.type in ("cpu", "cuda")
        gains = tensor.is_contiguous() and self.stored_bytes(numel, tensor.dtype) < numel * tensor.itemsize
        if not plain or not gains or torch.compiler.is_compiling():
            return self.compress(tensor.clamp(least, most), seed=seed, stream=stream)
        require_strided(self, tensor)
        require_float(self, tensor)
        key = noise_key(tensor, seed, stream)
        stochastic = self.rounding == "stochastic"
        payload = below_autograd(_COMPRESS_CLAMPED, tensor, self.bits, self.group_size, stochastic, *key, least, most)
        return made(self, payload, Layout.of(tensor), tensor.dtype)

    def decompress(self, compressed: Compressed) -> Tensor:
        """Return the tensor, with the codec's rounding error."""
        if not trusted(self, compressed):
            self._require_sound(compressed)
        layout, (codes, bounds) = compressed.layout, compressed.payload
        flat = below_autograd(_DECOMPRESS, codes, bounds, stored_numel(layout), self.bits, self.group_size)
        return layout.restore(flat)

    def _require_sound(self, compressed: Compressed) -> None:
        require_form(self, compressed, FLOATS)
        numel = stored_numel(compressed.layout)
        require_payload(
            compressed,
            (torch.uint8, packed_bytes(numel, self.bits)),
            (compressed.dtype, 2 * group_count(numel, self.group_size)),
        )
