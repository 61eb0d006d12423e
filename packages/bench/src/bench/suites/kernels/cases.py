"""The table of what is measured. A new codec or operator needs one line here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

import actcore
from bench.suites.kernels import contenders
from bench.suites.kernels.contenders import ACTCORE, COMPRESS, DECOMPRESS, PLAIN, TORCH, TRAIN, Pass, RoundTrip

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTEGERS = (torch.int64, torch.int32)
GROUP = contenders.GROUP
"""Elements of a group, where nothing else is said."""
_TRAINED = (torch.float32, torch.bfloat16)
_ROWS = 64  # of GroupAffineRows, such as a batch's samples


@dataclass(frozen=True)
class Case:
    """A codec or an operator, and what runs beside it.

    Attributes:
        name: as in the tables.
        contenders: ``RoundTrip`` or ``Pass``: actcore's first, then torch's or plain PyTorch's.
        dtypes: that it is measured with.
        bits: an element, where that is a choice; 0 elsewhere.
        prepare: what it is measured on, made from flat float32 normal values and the dtype.
        rivals: by library, what makes its contender, called where the library is present.
        targets: by "compress", "decompress" or "forward + backward" and name of the dtype: the time on a CPU over that
            of the yardstick that should not be exceeded.
    """

    name: str
    contenders: tuple[RoundTrip | Pass, ...]
    dtypes: tuple[torch.dtype, ...] = FLOATS
    bits: int = 0
    prepare: Callable[[Tensor, torch.dtype], Tensor] = lambda x, dtype: x.to(dtype)
    rivals: tuple[tuple[str, Callable[[], RoundTrip | Pass]], ...] = ()
    targets: tuple[tuple[str, str, float], ...] = ()

    @property
    def stores(self) -> bool:
        """Whether it is a codec."""
        return isinstance(self.contenders[0], RoundTrip)


def _codec(
    name: str, codec: Any, compress: Callable[[Tensor], Any], decompress: Callable[..., Any], **more: Any
) -> Case:
    """A case that stores: ``codec`` beside ``compress`` and ``decompress(stored, numel, dtype)`` of plain PyTorch."""

    def plain_decompress(stored: Any) -> Tensor:
        parts, numel, dtype = stored
        back: Tensor = decompress(parts, numel, dtype)
        return back

    other = RoundTrip(
        PLAIN,
        lambda x: (compress(x), x.numel(), x.dtype),
        plain_decompress,
        lambda stored: list(stored[0]),
    )
    return Case(name, (_own(codec), other), **more)


def _own(codec: Any) -> RoundTrip:
    return RoundTrip(
        ACTCORE, lambda x: actcore.compress(x, codec), actcore.decompress, lambda stored: list(stored.payload)
    )


def _of_groups(name: str, codec: Any, bits: int) -> Case:
    """A codec with groups of another size than plain PyTorch's here: beside copies alone."""
    return Case(f"{name}, groups of {codec.group_size}", (_own(codec),), bits=bits)


def _group_affine(bits: int, group: int = GROUP) -> Case:
    name = f"GroupAffine, {bits} bit{'s' if bits > 1 else ''}"
    if group != GROUP:
        return _of_groups(name, actcore.GroupAffine(bits, group), bits)
    judged = bits in (8, 4, 2, 1)
    nearest: dict[int, tuple[tuple[str, Callable[[], RoundTrip]], ...]] = {
        width: (
            ("bitsandbytes", partial(contenders.bitsandbytes, width)),
            ("torchao", partial(contenders.torchao, width)),
        )
        for width in (8, 4)
    }
    return _codec(
        name,
        actcore.GroupAffine(bits),
        lambda x: contenders.compress_groups(x, bits),
        lambda parts, numel, dtype: contenders.decompress_groups(parts, bits, numel),
        bits=bits,
        rivals=nearest.get(bits, ()),
        targets=(
            (COMPRESS, "float32", 1.3),
            (DECOMPRESS, "float32", 1.1),
            (COMPRESS, "bfloat16", 2.0),
            (DECOMPRESS, "bfloat16", 1.7),
        )
        if judged
        else (),
    )


def _float8(name: Literal["e4m3", "e5m2"], dtype: torch.dtype, group: int = GROUP) -> Case:
    if group != GROUP:
        return _of_groups(f"Float8, {name}", actcore.Float8(name, group), 8)
    return _codec(
        f"Float8, {name}",
        actcore.Float8(name),
        lambda x: contenders.compress_float8(x, dtype),
        lambda parts, numel, dtype: contenders.decompress_float8(parts),
        bits=8,
    )


def _group_affine_rows(bits: int, group: int = GROUP) -> Case:
    """The operator that ``GroupAffineRows`` calls, with widths on the device, so that the host waits for nothing;
    beside copies alone."""

    def compress(x: Tensor) -> Any:
        widths = torch.full((_ROWS,), bits, device=x.device)
        codes, bounds, _ = torch.ops.actcore.group_affine_rows_compress(
            x, widths, x.numel() * bits // 8, group, True, 0, 0
        )
        return codes, bounds, widths, x.numel()

    own = RoundTrip(
        ACTCORE,
        compress,
        lambda stored: torch.ops.actcore.group_affine_rows_decompress(*stored, group)[0],
        lambda stored: list(stored[:3]),
    )
    size = f", groups of {group}" if group != GROUP else ""
    return Case(f"Affine rows, {bits} bits{size}", (own,), bits=bits)


def _narrow(high: int, bits: int) -> Case:
    return _codec(
        f"Narrow(0, {high})",
        actcore.Narrow(0, high),
        lambda x: (contenders.pack(x.to(torch.uint8), bits),),
        lambda parts, numel, dtype: contenders.unpack(parts[0], bits, numel).to(dtype),
        dtypes=INTEGERS,
        bits=bits,
        prepare=lambda x, dtype: (torch.arange(x.numel(), device=x.device) % (high + 1)).to(dtype),
    )


def _operator(name: str, own: Callable[[Tensor], Tensor], torchs: Callable[[Tensor], Tensor], **more: Any) -> Case:
    """A case that trains: actcore's function beside torch's own."""
    return Case(name, (Pass(ACTCORE, own), Pass(TORCH, torchs)), dtypes=_TRAINED, **more)


def _images(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype).view(-1, 1, 32, 32)


# The 3-bit table of Novikov et al., "Few-bit backward" (2022), for GELU: the borders of its intervals, and the level
# of its derivative in each.
_GELU_BORDERS = (-2.417, -0.710, -0.326, 0.0, 0.326, 0.710, 2.414)
_GELU_LEVELS = (0.0, -0.088, 0.126, 0.372, 0.628, 0.874, 1.088, 1.0)
_GELU_GRID = (-0.13, 0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.13)


def cases(groups: Sequence[int] = (GROUP,)) -> list[Case]:
    """All of them, those of groups once for each size."""
    return [
        *(_group_affine(bits, group) for group in groups for bits in (8, 7, 6, 5, 4, 3, 2, 1)),
        *(_group_affine_rows(4, group) for group in groups),
        *(_float8("e4m3", torch.float8_e4m3fn, group) for group in groups),
        *(_float8("e5m2", torch.float8_e5m2, group) for group in groups),
        _codec(
            "BitMask",
            actcore.BitMask(),
            lambda x: (contenders.pack((x == 1).to(torch.uint8), 1),),
            lambda parts, numel, dtype: contenders.unpack(parts[0], 1, numel).to(dtype),
            bits=1,
            prepare=lambda x, dtype: (x > 0).to(dtype),
        ),
        _codec(
            "Positive",
            actcore.Positive(),
            lambda x: (contenders.pack((x > 0).to(torch.uint8), 1),),
            lambda parts, numel, dtype: contenders.unpack(parts[0], 1, numel).to(dtype),
            bits=1,
        ),
        _narrow(8, 4),
        _operator("relu", actcore.relu, torch.relu),
        _operator("dropout, p = 0.1", lambda x: actcore.dropout(x, 0.1), lambda x: F.dropout(x, 0.1)),
        _operator(
            "max_pool2d, 3 x 3",
            lambda x: actcore.max_pool2d(x, 3, 2, 1),
            lambda x: F.max_pool2d(x, 3, 2, 1),
            prepare=_images,
        ),
        _operator(
            "stepwise GELU, 3 bits",
            lambda x: actcore.stepwise(x, "gelu", _GELU_BORDERS, _GELU_LEVELS, 3),
            F.gelu,
            bits=3,
            rivals=(("fewbit", partial(contenders.fewbit_gelu, 3)),),
            targets=((TRAIN, "float32", 1.0),),
        ),
        _operator(
            "round_to_levels GELU, 3 bits",
            lambda x: actcore.round_to_levels(x, "gelu", _GELU_GRID, 3),
            F.gelu,
            bits=3,
        ),
    ]
