"""Packing small integers end to end: the format that every codec of few bits shares."""

from __future__ import annotations

import torch
from torch import Tensor

from actcore.codecs.bit_mask import require_fit
from actcore.ops import packed_bytes


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """Pack codes of ``bits`` bits end to end: ``UInt8[Tensor, "..."] -> UInt8[Tensor, "ceil(bits*n/8)"]``.

    Eight consecutive codes fill ``bits`` consecutive bytes, as a little-endian stream of bits. Unused bits of the last
    byte are 0.

    Args:
        codes: uint8 of any shape, each below ``2**bits``, packed in contiguous order.
        bits: 1 to 8.

    Raises:
        TypeError: ``codes`` is not uint8.
        ValueError: ``bits`` is out of range, or a code is too large (on CUDA a device-side assertion, without a
            synchronization).
    """
    _check_bits(bits)
    if not isinstance(codes, Tensor) or codes.dtype != torch.uint8:
        found = getattr(codes, "dtype", type(codes).__name__)
        raise TypeError(f"codes must be a uint8 tensor, got {found}; cast with .to(torch.uint8)")
    packed: Tensor
    packed, misfit = torch.ops.actcore.pack_bits(codes.contiguous(), bits)
    require_fit(misfit, f"codes must be below 2**bits = {2**bits}, but one is not; use more bits or clamp the codes")
    return packed


def unpack_bits(packed: Tensor, bits: int, numel: int) -> Tensor:
    """Unpack codes that ``pack_bits`` packed: ``UInt8[Tensor, "ceil(bits*numel/8)"] -> UInt8[Tensor, "numel"]``.

    Raises:
        TypeError: ``packed`` is not uint8.
        ValueError: ``bits`` is out of range, or ``packed`` does not have the bytes of ``numel`` codes.
    """
    _check_bits(bits)
    if not isinstance(packed, Tensor) or packed.dtype != torch.uint8:
        raise TypeError(f"packed must be a uint8 tensor, got {getattr(packed, 'dtype', type(packed).__name__)}")
    if isinstance(numel, bool) or not isinstance(numel, int):
        raise TypeError(f"numel must be an int, got {numel!r}")
    if numel < 0 or packed.numel() != packed_bytes(numel, bits):
        raise ValueError(
            f"packed must hold {packed_bytes(max(numel, 0), bits)} bytes for numel={numel} codes of {bits} bits, "
            f"got {packed.numel()}"
        )
    codes: Tensor = torch.ops.actcore.unpack_bits(packed.contiguous(), bits, numel)
    return codes


def _check_bits(bits: int) -> None:
    if isinstance(bits, bool) or not isinstance(bits, int):
        raise TypeError(f"bits must be an int, got {bits!r}")
    if not 1 <= bits <= 8:
        raise ValueError(f"bits must be from 1 to 8, got {bits}")
