"""``GroupAffineRows``: unbiased quantisation with a width of its own for each row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from actcore.codec import (
    DAMAGED,
    noise_key,
    require_form,
    require_payload,
    require_strided,
    without_history,
)
from actcore.codecs.group_affine import Rounding, require_bits, require_float, require_grouping
from actcore.codecs.raw import Raw
from actcore.compressed import Compressed
from actcore.dtypes import FLOATS
from actcore.layout import Layout, distinct_elements, distinct_shape, is_dense, stored_numel
from actcore.ops import Key, below_autograd, group_count, overload, packed_bytes


@dataclass(frozen=True)
class GroupAffineRows:
    """``GroupAffine`` with a bit width for each row of dimension 0.

    This is the mixed precision of ActNN (Chen et al., ICML 2021). Each sample of a batch gets the bits that its
    gradient needs. All guarantees of ``GroupAffine`` hold row by row, with these differences: groups end with their
    row, the codes of each row begin on a byte, and the noise of an element is that of its position among all rows. Rows
    are stored one after another, so a tensor whose dimension 0 is not the outermost in memory is copied first. A tensor
    expanded over dimension 0 has one row, which is stored once, at the largest width. A tensor too small to gain is
    stored as a copy under ``Raw``.

    The widths are known on the host and are copied to the device with every call. A policy that computes them on the
    device calls ``torch.ops.actcore.group_affine_rows_compress``, which accepts them as a tensor and does not
    synchronize.

    Args:
        bits: bits per element of each row, 1 to 8.
        group_size: elements per group, a positive multiple of 32.
        rounding: ``"stochastic"`` (unbiased) or ``"nearest"`` (smallest error, biased).
    """

    bits: tuple[int, ...]
    group_size: int = 256
    rounding: Rounding = "stochastic"

    def __post_init__(self) -> None:
        if not isinstance(self.bits, tuple):
            found = type(self.bits).__name__
            raise TypeError(f"bits must be a tuple of ints, one for each row, got {found}; try tuple(bits)")
        for row, bits in enumerate(self.bits):
            require_bits(f"bits[{row}]", bits)
        require_grouping(self.group_size, self.rounding)

    def stored_bytes(self, numel: int, dtype: torch.dtype) -> int:
        """Return the bytes of the payload for ``numel`` stored elements of ``dtype`` in ``len(bits)`` rows."""
        return _stored_bytes(self.bits, numel, self.group_size, dtype)

    def compress(self, tensor: Tensor, *, seed: Key = 0, stream: Key = 0) -> Compressed:
        """``Float[Tensor, "rows ..."] -> (codes: UInt8[bytes of all rows], bounds: Float[groups of all rows, 2])``.

        Raises:
            ValueError: dimension 0 does not have the size ``len(bits)``.
        """
        require_strided(self, tensor)
        require_float(self, tensor)
        if tensor.dim() == 0 or tensor.shape[0] != len(self.bits):
            raise ValueError(
                f"tensor must have {len(self.bits)} rows, one for each of bits, got shape {tuple(tensor.shape)}"
            )
        key = noise_key(tensor, seed, stream)
        tensor = without_history(tensor)
        layout = Layout.of(tensor)
        numel = stored_numel(layout)
        bits = self._widths(layout)
        if _stored_bytes(bits, numel, self.group_size, tensor.dtype) >= numel * tensor.dtype.itemsize:
            return Raw().compress(layout.restore(layout.flatten(tensor).clone()))
        codes, bounds, _ = below_autograd(
            overload(torch.ops.actcore.group_affine_rows_compress, key),
            _flatten(layout, tensor),
            _on_device(bits, tensor.device),
            _code_bytes(bits, numel),
            self.group_size,
            self.rounding == "stochastic",
            *key,
        )
        return Compressed(self, (codes, bounds), layout, tensor.dtype)

    def decompress(self, compressed: Compressed) -> Tensor:
        """Return the tensor, with the codec's rounding error."""
        require_form(self, compressed, FLOATS)
        layout, dtype = compressed.layout, compressed.dtype
        if not layout.shape or layout.shape[0] != len(self.bits):
            raise ValueError(f"layout must have {len(self.bits)} rows, one for each of bits, got {layout!r}; {DAMAGED}")
        numel = stored_numel(layout)
        bits = self._widths(layout)
        groups = _groups(bits, numel, self.group_size)
        require_payload(compressed, (torch.uint8, _code_bytes(bits, numel)), (dtype, 2 * groups))
        codes, bounds = compressed.payload
        widths = _on_device(bits, compressed.device)
        flat, _ = below_autograd(
            torch.ops.actcore.group_affine_rows_decompress.default, codes, bounds, widths, numel, self.group_size
        )
        return _restore(layout, flat)

    def _widths(self, layout: Layout) -> tuple[int, ...]:
        """Those of the rows that are stored."""
        return self.bits if distinct_shape(layout)[0] == len(self.bits) else (max(self.bits),)


def _row_size(bits: tuple[int, ...], numel: int) -> int:
    return numel // max(len(bits), 1)


def _code_bytes(bits: tuple[int, ...], numel: int) -> int:
    return sum(packed_bytes(_row_size(bits, numel), width) for width in bits)


def _groups(bits: tuple[int, ...], numel: int, group_size: int) -> int:
    return len(bits) * group_count(_row_size(bits, numel), group_size)


def _stored_bytes(bits: tuple[int, ...], numel: int, group_size: int, dtype: torch.dtype) -> int:
    return _code_bytes(bits, numel) + 2 * dtype.itemsize * _groups(bits, numel, group_size)


def _on_device(bits: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(bits, dtype=torch.uint8).to(device, non_blocking=True)


def _rows_outermost(layout: Layout) -> bool:
    """Whether the rows of a dense tensor lie in memory one after another."""
    rows = distinct_shape(layout)[0]
    return is_dense(layout) and (rows <= 1 or layout.strides[0] * rows == stored_numel(layout))


def _flatten(layout: Layout, tensor: Tensor) -> Tensor:
    """The elements to store, row by row: a view where they lie so, a copy otherwise."""
    if not is_dense(layout) or _rows_outermost(layout):
        return layout.flatten(tensor)
    return distinct_elements(layout, tensor).contiguous().view(-1)


def _restore(layout: Layout, flat: Tensor) -> Tensor:
    """The inverse of ``_flatten``, with the shape and strides of the layout."""
    if not is_dense(layout) or _rows_outermost(layout):
        return layout.restore(flat)
    spaced = flat.new_empty_strided(distinct_shape(layout), layout.strides)
    return spaced.copy_(flat.view(distinct_shape(layout))).expand(layout.shape)
