"""``Float8``: 8-bit floats, scaled group by group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from actcore.codec import noise_key, require_form, require_payload, require_strided, without_history
from actcore.codecs.group_affine import Rounding, require_float, require_grouping
from actcore.codecs.raw import Raw
from actcore.compressed import Compressed
from actcore.dtypes import FLOATS
from actcore.layout import Layout, stored_numel
from actcore.ops import Key, below_autograd, group_count, overload

Format = Literal["e4m3", "e5m2"]

_DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


@dataclass(frozen=True)
class Float8:
    """Stores each element as an 8-bit float, and the largest magnitude of each group as its scale.

    The formats are those of Micikevicius et al., "FP8 formats for deep learning" (2022): E4M3 has 3 mantissa bits down
    to about 2**-15 of the largest magnitude, E5M2 has 2 down to about 2**-30. ``GroupAffine(8)`` has one step size for
    a whole group. Here the spacing follows the element, so small values next to large ones keep their relative
    precision. With ``spacing`` the distance of neighboring codes around an element:

    * stochastic rounding is unbiased: the mean over streams is the element, up to ``2**-9`` spacing (a rounding has 8
      random bits) and half a unit in the last place of the dtype; the variance is at most ``spacing**2 / 4`` and no
      element moves by a spacing or more;
    * nearest rounding, ties to even, moves no element by more than half a spacing;
    * signs are kept, including those of zeros; the largest magnitude is restored exactly and no restored element is
      larger; a group of zeros is exact;
    * a group with a NaN or an infinity decompresses to NaN throughout.

    The payload is (codes, bounds). ``codes.view(torch.float8_e4m3fn)`` (``torch.float8_e5m2``) reads the codes as
    torch's own float8 numbers; multiply them by ``bound / 448`` (``bound / 57344``) of their group. Groups run in
    memory order over the stored elements (``Layout``). The stored form takes one byte per element and one element per
    group; a tensor too small to gain is stored as a copy under ``Raw``.

    Args:
        format: ``"e4m3"`` (more precise) or ``"e5m2"`` (wider range).
        group_size: elements per group, a positive multiple of 32.
        rounding: ``"stochastic"`` (unbiased) or ``"nearest"`` (smallest error, biased).
    """

    format: Format = "e4m3"
    group_size: int = 256
    rounding: Rounding = "stochastic"

    def __post_init__(self) -> None:
        if self.format not in get_args(Format):
            raise ValueError(f"format must be one of {', '.join(get_args(Format))}, got {self.format!r}")
        require_grouping(self.group_size, self.rounding)

    def stored_bytes(self, numel: int, dtype: torch.dtype) -> int:
        """Return the bytes of the payload for ``numel`` stored elements of ``dtype``."""
        return numel + dtype.itemsize * group_count(numel, self.group_size)

    def compress(self, tensor: Tensor, *, seed: Key = 0, stream: Key = 0) -> Compressed:
        """``Float[Tensor, "..."] -> (codes: UInt8[n], bounds: Float[groups])``."""
        require_strided(self, tensor)
        require_float(self, tensor)
        key = noise_key(tensor, seed, stream)
        tensor = without_history(tensor)
        layout = Layout.of(tensor)
        numel = stored_numel(layout)
        if self.stored_bytes(numel, tensor.dtype) >= numel * tensor.dtype.itemsize:
            return Raw().compress(layout.restore(layout.flatten(tensor).clone()))
        operator = overload(torch.ops.actcore.float8_compress, key)
        flat, stochastic = layout.flatten(tensor), self.rounding == "stochastic"
        codes, bounds = below_autograd(operator, flat, _DTYPES[self.format], self.group_size, stochastic, *key)
        return Compressed(self, (codes, bounds), layout, tensor.dtype)

    def decompress(self, compressed: Compressed) -> Tensor:
        """Return the tensor, with the codec's rounding error."""
        require_form(self, compressed, FLOATS)
        layout, dtype = compressed.layout, compressed.dtype
        numel = stored_numel(layout)
        require_payload(compressed, (torch.uint8, numel), (dtype, group_count(numel, self.group_size)))
        operator = torch.ops.actcore.float8_decompress.default
        flat = below_autograd(operator, *compressed.payload, _DTYPES[self.format], self.group_size)
        return layout.restore(flat)
