"""Call every operator of actcore on small tensors, and compare the results with the CPU's, bit for bit.

Tensors begin at odd elements and end with their memory; lengths end within a byte, a vector, a warp's tile and a
group; rows have widths of their own, and windows reach over all edges. compute-sanitizer watches these calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
from torch import Tensor

from actcore import reference

# Elements that tensors begin at, and their dtypes.
_PLACES = (
    *((1, torch.float32), (1, torch.bfloat16), (0, torch.bfloat16), (0, torch.float32)),
    *((3, torch.float32), (3, torch.bfloat16), (1, torch.float16), (1, torch.float64)),
)
_QUICK_PLACES = _PLACES[:2]
_LENGTHS, _QUICK_LENGTHS = (1, 33, 1025, 4099), (1, 1025)
_GROUPS = (32, 96, 192, 256, 2048)  # a warp, several in a tile, not a power of two, the default, a block's
_KEY = (2026, -7)
# Statistics, of a block where channels are last; elements or rows that have the same; channels that are last.
_ORDERS = ((5, 49, 0), (3, 1100, 0), (64, 1, 0), (40, 33, 40), (3, 7, 96), (1, 300, 3))
_POOLS: Sequence[tuple[tuple[int, ...], tuple[Any, ...]]] = (
    ((2, 3, 13, 17), ([3, 3], [2, 2], [1, 1], [1, 1], False)),
    ((2, 2, 7, 10), ([3, 2], [2, 1], [0, 0], [1, 2], True)),
    ((1, 2, 20, 20), ([16, 16], [3, 3], [8, 8], [1, 1], True)),
    ((3, 2, 21), ([3], [2], [1], [1], False)),
    ((1, 2, 6, 7, 5), ([2, 3, 2], [2, 1, 2], [1, 1, 0], [1, 2, 1], True)),
)


@dataclass
class Calls:
    """Calls operators on a device, and notes which.

    Attributes:
        device: where.
        start: the element that each tensor begins at, in memory that ends with the tensor.
        names: of the operators that were called.
        wrong: those whose results are not the CPU's.
    """

    device: torch.device
    start: int = 0
    names: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)

    def __call__(self, name: str, *arguments: Any) -> Any:
        """Calls an operator with tensors of the CPU; returns the CPU's results."""
        expected, got = self._called(name, arguments)
        several = isinstance(expected, tuple)
        self._compare(name, arguments, got if several else (got,), expected if several else (expected,))
        return expected

    def standardized(self, *arguments: Any) -> Any:
        """Calls ``group_affine_standardized_compress``, as ``__call__`` does. Which statistics a device finds depends
        on how it rounds: codes and bounds are compared with the reference's for these, and these with the CPU's. Sums
        of at most 64 elements have moved either by 64 units of the last place at most, and then each was rounded."""
        name = "group_affine_standardized_compress"
        expected, got = self._called(name, arguments)
        found, near = got[2].cpu(), 130 * torch.finfo(expected[2].dtype).eps * expected[2].abs().sum(0)
        codes = reference.group_affine_standardized_codes(arguments[0], found, *arguments[1:])
        self._compare(name, arguments, got[:2], codes)
        if not bool(((found - expected[2]).abs() <= near).all()):
            self.wrong.append(f"{name}, the statistics of {_described(arguments)}")
        return expected

    def writing(self, name: str, arguments: tuple[Any, ...], like: Sequence[Tensor]) -> None:
        """Calls an operator that writes into tensors such as ``like``, its last arguments."""
        operator, _, overload = name.partition(".")
        function = getattr(getattr(torch.ops.actcore, operator), overload)
        expected, got = [torch.zeros_like(one) for one in like], [self._placed(torch.zeros_like(one)) for one in like]
        function(*arguments, *expected)
        function(*(self._placed(one) if isinstance(one, Tensor) else one for one in arguments), *got)
        self.names.add(name)
        self._compare(name, arguments, got, expected)

    def _called(self, name: str, arguments: tuple[Any, ...]) -> tuple[Any, Any]:
        """What an operator returns on the CPU, and on the device."""
        operator, _, overload = name.partition(".")
        function = getattr(getattr(torch.ops.actcore, operator), overload or "default")
        expected = function(*arguments)
        got = function(*(self._placed(one) if isinstance(one, Tensor) else one for one in arguments))
        self.names.add(name)
        return expected, got

    def _compare(
        self, name: str, arguments: tuple[Any, ...], got: Sequence[Tensor], expected: Sequence[Tensor]
    ) -> None:
        if any(not _same(one.cpu(), other) for one, other in zip(got, expected, strict=True)):
            self.wrong.append(f"{name}, {_described(arguments)}")

    def _placed(self, tensor: Tensor) -> Tensor:
        memory = torch.empty(self.start + tensor.numel(), dtype=tensor.dtype, device=self.device)
        return memory[self.start :].view(tensor.shape).copy_(tensor)


def call_all(device: torch.device, quick: bool) -> Calls:
    """Calls every operator with tensors of all lengths, starts and dtypes; ``quick``: with some of each."""
    calls = Calls(device)
    for calls.start in (1, 0, 3):
        for numel in _QUICK_LENGTHS if quick else _LENGTHS:
            _integers(calls, numel)
    for calls.start, dtype in _QUICK_PLACES if quick else _PLACES:
        for numel in _QUICK_LENGTHS if quick else _LENGTHS:
            x = _normal(numel, dtype)
            _groups(calls, x)
            _masks(calls, x)
            _levels(calls, x)
        for bits in (3, 4) if quick else range(1, 9):
            _standardized(calls, dtype, bits)
        _rows(calls, dtype)
        _pools(calls, dtype)
    return calls


def _groups(calls: Calls, x: Tensor) -> None:
    key = tuple(torch.tensor([part]) for part in _KEY)
    for group in _GROUPS:
        for bits in range(1, 9):
            codes, bounds = calls("group_affine_compress", x, bits, group, True, *_KEY)
            calls("group_affine_decompress", codes, bounds, x.numel(), bits, group)
            calls("group_affine_clamped_compress", x, bits, group, True, *_KEY, -0.5, 0.75)
        calls("group_affine_compress.tensor", x, 3, group, True, *key)
        payload = calls("group_affine_compress.graph", x, 3, group, True, _KEY[0], key[1])
        calls("group_affine_decompress.graph", payload, x.numel(), x.dtype, 3, group)
        for format in (torch.float8_e4m3fn, torch.float8_e5m2):
            codes, bounds = calls("float8_compress", x, format, group, True, *_KEY)
            calls("float8_decompress", codes, bounds, format, group)
        calls("float8_compress.tensor", x, torch.float8_e4m3fn, group, True, *key)


def _standardized(calls: Calls, dtype: torch.dtype, bits: int) -> None:
    """Runs within rows and cells, and longer than a tile; rows of channels that fill cells, and that do not."""
    for count, inner, channels in _ORDERS:
        x = _normal(inner * channels * 2 if channels else 3 * count * inner, dtype) + 1
        for group in _GROUPS:
            order = (count * 2 if channels else count, inner, channels)
            codes, bounds, found = calls.standardized(x, bits, group, True, *_KEY, *order)
            name, (_, *where) = "group_affine_standardized_decompress", order
            calls(name, codes, bounds, found, x.numel(), *where, bits, group)
            means, deviations = found
            for added, function in ((None, "none"), (x, "relu")):
                options = (added, x.numel(), *where, bits, group, function)
                calls("group_affine_standardized_activation", codes, bounds, deviations, means, *options)
            given = (x, bits, group, True, *_KEY, means, deviations, *where)
            calls.writing("group_affine_standardized_compress.given", given, (codes, bounds, found))


def _rows(calls: Calls, dtype: torch.dtype) -> None:
    widths = torch.tensor([3, 1, 8, 5, 2])
    key = tuple(torch.tensor([part]) for part in _KEY)
    for row, group in product((1, 33, 300), (32, 96, 256)):
        x = _normal(5 * row, dtype)
        nbytes = sum(-(-row * bits // 8) for bits in widths.tolist())
        codes, bounds, _ = calls("group_affine_rows_compress", x, widths, nbytes, group, True, *_KEY)
        calls("group_affine_rows_compress.tensor", x, widths, nbytes, group, True, *key)
        calls("group_affine_rows_decompress", codes, bounds, widths, x.numel(), group)


def _masks(calls: Calls, x: Tensor) -> None:
    mask, _ = calls("bit_mask_compress", (x > 0).to(x.dtype) * 2, 0.0, 2.0)
    calls("bit_mask_decompress", mask, x.numel(), x.dtype, 0.0, 2.0)
    calls("positive_mask", x)
    mask = calls("bit_mask_compress.graph", (x > 0).to(x.dtype) * 2, 0.0, 2.0)
    calls("bit_mask_decompress.graph", mask, x.numel(), x.dtype, 0.0, 2.0)
    calls("positive_mask.graph", x)
    calls("relu_mask", x)
    for draw in (None, torch.tensor([-7])):
        _, mask = calls("dropout_mask", x, 0.3, *_KEY, draw)
    calls("mask_backward", x, mask, 1.5)


def _levels(calls: Calls, x: Tensor) -> None:
    compute = torch.float64 if x.dtype == torch.float64 else torch.float32
    table = torch.linspace(-2, 2, 256, dtype=compute)
    for bits in range(1, 9):
        boundaries, levels = table[: 2**bits - 1].contiguous(), table[: 2**bits].contiguous()
        _, codes = calls("stepwise", x, "relu", [], boundaries, bits)
        calls("stepwise_backward", x, codes, levels, bits)
        calls("stepwise_codes", x, boundaries, bits)
        codes = calls("stepwise_codes", x, boundaries + 2, bits, True, "nonfinite")
        calls("stepwise_backward", x, codes, levels, bits, True)
        calls("level_codes", x, x, levels, bits, *_KEY, None, "nan")


def _pools(calls: Calls, dtype: torch.dtype) -> None:
    for shape, options in _POOLS:
        x = _normal(torch.Size(shape).numel(), dtype).view(shape)
        output, packed = calls("max_pool", x, *options)
        calls("max_pool_backward", output, packed, list(shape), *options)
        indices = calls("window_index_unpack", packed, list(shape), *options)
        calls("window_index_pack", indices, list(shape), *options)


def _integers(calls: Calls, numel: int) -> None:
    for bits in range(1, 9):
        packed, _ = calls("pack_bits", (torch.arange(numel) * 37 % 2**bits).to(torch.uint8), bits)
        calls("unpack_bits", packed, bits, numel)
    for low, high in ((-5, 5), (0, 255), (-300, 2707), (-(2**40), 2**62)):
        values = low + torch.arange(numel) % min(high - low + 1, 1000)
        packed, _ = calls("narrow_compress", values, low, high)
        calls("narrow_decompress", packed, numel, torch.int64, low, high)


def _normal(numel: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(numel)).to(dtype)


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8))


def _described(arguments: Sequence[Any]) -> str:
    return ", ".join(
        f"{str(one.dtype).removeprefix('torch.')}{list(one.shape)}" if isinstance(one, Tensor) else str(one)
        for one in arguments
    )
