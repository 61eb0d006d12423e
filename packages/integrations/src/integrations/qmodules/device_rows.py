"""``DeviceRows``: a width for each row, decided on the device and waited for by nobody."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

import actcore
from actcore.ops import below_autograd

_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@dataclass(frozen=True)
class DeviceRows:
    """``actcore.GroupAffineRows`` whose widths are a tensor on the device of the data: only their sum is known here.

    The sum decides how many bytes there are; which row takes which of them, the kernels find out. The widths are part
    of the stored form, a byte a row.

    Args:
        total: bits of one element of each row, added up over the rows: ``bits.sum()``.
        group_size: elements per group, a positive multiple of 32; groups end with their row.
        bits: ``Int[Tensor, "rows"]`` from 1 to 8, for ``compress``. ``None`` in the codec of a stored form.
    """

    total: int
    group_size: int = 256
    bits: Tensor | None = field(default=None, compare=False, repr=False)

    def compress(self, tensor: Tensor, *, seed: int | Tensor = 0, stream: int | Tensor = 0) -> actcore.Compressed:
        """``Float[Tensor, "rows ..."] -> (codes: UInt8[bytes], bounds: Float[groups, 2], bits: UInt8[rows])``.

        A tensor too small to gain is stored as a copy under ``Raw``. A row beyond the bytes that ``total`` makes room
        for, as there is one if the widths add up to more, decompresses to NaN.

        Raises:
            TypeError: the tensor is not one of floating-point numbers.
            ValueError: there is not one width for each row.
        """
        tensor = tensor.detach()
        if self.bits is None or tensor.dim() == 0 or tensor.shape[0] != self.bits.numel():
            widths = None if self.bits is None else self.bits.numel()
            raise ValueError(f"bits must hold a width for each row of {tuple(tensor.shape)}, got {widths}")
        if tensor.dtype not in _FLOATS:
            raise TypeError(f"{self!r} takes floating-point numbers, got {tensor.dtype}; keep it: actcore.Raw()")
        rows = view_as_rows(tensor)
        count, size = rows.shape
        nbytes = code_bytes(self.total, count, size)
        groups = count * -(-size // self.group_size)
        if nbytes + count + 2 * tensor.itemsize * groups >= tensor.nbytes:
            return actcore.Raw().compress(tensor.clone())
        arguments = (rows, self.bits.to(torch.uint8), nbytes, self.group_size, True)
        operator = torch.ops.actcore.group_affine_rows_compress
        if isinstance(seed, Tensor) or isinstance(stream, Tensor):
            key = _on_device(seed, tensor), _on_device(stream, tensor)
            codes, bounds, _ = below_autograd(operator.tensor, *arguments, *key)
        else:
            codes, bounds, _ = below_autograd(operator.default, *arguments, _signed(seed), _signed(stream))
        return actcore.Compressed.of(DeviceRows(self.total, self.group_size), tensor, (codes, bounds, arguments[1]))

    def decompress(self, compressed: actcore.Compressed) -> Tensor:
        """The tensor, with the codec's rounding error; one that was not dense in memory comes back contiguous.

        Raises:
            ValueError: the payload is damaged.
        """
        shape, strides = compressed.layout
        if len(compressed.payload) != 3 or not shape or compressed.payload[2].numel() != shape[0]:
            raise ValueError(
                f"the payload of {compressed!r} must be codes, bounds and a width for each row; it is damaged or "
                "truncated: store the tensor again"
            )
        numel = compressed.shape.numel()
        operator = torch.ops.actcore.group_affine_rows_decompress.default
        flat: Tensor = below_autograd(operator, *compressed.payload, numel, self.group_size)[0]
        layout = compressed.layout
        if not layout.dense or 0 in strides:
            return flat.view(shape)
        if _rows_outermost(shape, strides):
            return layout.restore(flat)
        return torch.empty_strided(shape, strides, dtype=flat.dtype, device=flat.device).copy_(flat.view(shape))


def view_as_rows(tensor: Tensor) -> Tensor:
    """``[rows, row size]``: each row's elements as they lie in memory, and a view where rows lie one after another."""
    count = tensor.shape[0]
    size = tensor.numel() // max(count, 1)
    layout = actcore.Layout.of(tensor)
    if layout.dense and 0 not in layout.strides and _rows_outermost(*layout):
        return layout.flatten(tensor).view(count, size)
    return tensor.contiguous().view(count, size)


def code_bytes(total: int, rows: int, size: int) -> int:
    """Bytes that suffice for rows of ``size`` codes whose widths add up to ``total``: a row's end begins no byte."""
    return (total * size + (7 * rows if size % 8 else 0)) // 8


def _rows_outermost(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    size = 1
    for extent in shape[1:]:
        size *= extent
    return shape[0] <= 1 or strides[0] == size


def _signed(value: int) -> int:
    """The int64 of the same 64 bits, which is what operators take."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _on_device(value: int | Tensor, like: Tensor) -> Tensor:
    if isinstance(value, Tensor):
        return value
    return torch.full((1,), _signed(value), dtype=torch.int64, device=like.device)
