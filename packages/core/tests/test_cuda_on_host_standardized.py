"""The same as test_cuda_on_host.py, of elements that are clamped or standardised on their way.

Statistics are within their rounding; codes, bounds and values are bit for bit those that the CPU operators make of the
same statistics.
"""

import math
import re
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch

from actcore import reference

from .emulation import CSRC, ELEMENT_TYPES, Written, at_offset, same_bytes
from .samples import BITS, DTYPES, NUMELS, hard_ranges, name_of, normal, not_finite

ops = torch.ops.actcore
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name_of)

SEED, STREAM = 0x0123_4567_89AB_CDEF, -3
WHOLE_OR_NOT = (640, 600)  # elements: rows that are moved 16 bytes at a time, and others
CLAMPS = [(-0.3, 0.7), (-10.0, 0.0), (0.1, 0.1), (2.0, 3.0)]


@dataclass(frozen=True)
class Order:
    """Statistics, and in which order elements have them: as the operators are told."""

    count: int
    inner: int
    channels: int = 0

    def struct(self, kernels, numel):
        each = numel // self.inner // self.count if self.channels else 1
        return kernels.struct("StandardizedShape")(numel, self.count, self.inner, self.channels, each)


def key(kernels):
    return kernels.struct("NoiseKey")(SEED, STREAM % 2**64)


def compressed(kernels, name, x, bits, group_size, stochastic, skip, *, clamp=(), by=()):
    """What a kernel stores of a tensor that begins ``skip`` elements beyond a multiple of 16."""
    codes = Written((x.numel() * bits + 7) // 8, torch.uint8, skip=skip)
    bounds = Written(2 * -(-x.numel() // group_size), x.dtype)
    given = at_offset(x, skip * x.element_size())
    what = (given.data_ptr(), ELEMENT_TYPES[x.dtype], x.numel(), group_size, bits, stochastic, key(kernels), 0)
    to = (codes.data_ptr(), bounds.data_ptr(), *((True, *clamp) if clamp else ()))
    kernels.run(name, kernels.struct("GroupAffineCompress")(*what, *to), *by)
    return codes.tensor(), bounds.tensor()


def check_clamped(kernels, x, bits, group_size, stochastic, clamp, skip=0):
    case = f"{x.dtype} bits={bits} group_size={group_size} numel={x.numel()} clamp={clamp} skip={skip}"
    options = (bits, group_size, stochastic)
    expected = ops.group_affine_clamped_compress(x, *options, SEED, STREAM, *clamp)
    got = compressed(kernels, "group_affine_clamped_compress", x, *options, skip, clamp=clamp)
    for one, other in zip(got, expected, strict=True):
        same_bytes(one, other, case)


def moments(kernels, x, order, skip=0):
    """The means and deviations that the kernels find, and by what they say that distances are to be multiplied."""
    wide = torch.promote_types(x.dtype, torch.float32)
    shape, given = order.struct(kernels, x.numel()), at_offset(x, skip * x.element_size())
    room = torch.zeros(1, dtype=torch.int64)
    kernels.run("moment_parts", shape, room)
    parts = Written(room.item(), torch.float64)
    found, factors = Written(2 * order.count, wide), Written(order.count, wide)
    means, deviations = found.data_ptr(), found.data_ptr() + order.count * wide.itemsize
    what = (given.data_ptr(), ELEMENT_TYPES[x.dtype], shape, parts.data_ptr(), means, deviations, factors.data_ptr())
    kernels.run("take_moments", kernels.struct("TakeMoments")(*what))
    parts.tensor()
    return found.tensor().view(2, -1), factors.tensor()


def check_moments(kernels, x, order, skip=0):
    """Let u be half a unit of the last place of 1. A distance, from about the mean of a thread's 32 elements, is off by
    u of itself, and their sum by 32 u of the distances, which are a deviation in the mean; then sums go on in float64.
    So a mean is off by 33 u of a deviation at most. A square of a distance is off by 2 u, and their sum by 33 u, of
    which a deviation has the half. Each is rounded once more, by u of itself: 34 u together. The reference adds in
    float64 one element after the other, each of which costs u of that."""
    found, factors = moments(kernels, x, order, skip)
    wide = found.dtype
    least = math.sqrt(torch.finfo(wide).tiny)
    same_bytes(factors.nan_to_num(-7.0), found[1].clamp(min=least).reciprocal().nan_to_num(-7.0), order)
    options = (4, 96, True, SEED, STREAM, order.count, order.inner, order.channels)
    expected = reference.group_affine_standardized_compress(x, *options)[2]
    ordinary = expected.isfinite().all(0)
    assert torch.equal(found[1].isnan(), ~ordinary), order
    apart, scale = (found - expected)[:, ordinary].abs(), expected[:, ordinary].abs().sum(0)
    near = 17 * torch.finfo(wide).eps + x.numel() / order.count * torch.finfo(torch.float64).eps / 2
    assert bool((apart <= near * scale).all()), (x.dtype, order, skip)
    return found


def check_codes(kernels, x, order, bits=4, group_size=96, stochastic=True, skip=0, apart=(0, 0)):
    case = f"{x.dtype} {order} bits={bits} group_size={group_size} numel={x.numel()} skip={skip} apart={apart}"
    options = (bits, group_size, stochastic)
    expected = ops.group_affine_standardized_compress(
        x, *options, SEED, STREAM, order.count, order.inner, order.channels
    )
    means, deviations = expected[2]
    least = math.sqrt(torch.finfo(means.dtype).tiny)
    with statistics(kernels, order, x, means, deviations.clamp(min=least).reciprocal(), apart) as by:
        got = compressed(kernels, "group_affine_standardized_compress", x, *options, skip, by=(by,))
    for one, other in zip(got, expected[:2], strict=True):
        same_bytes(one, other, case)
    check_values(kernels, expected, x, order, bits, group_size, skip, apart)


@contextmanager
def statistics(kernels, order, x, means, factors, apart):
    """As the kernels are told. Either is so many elements beyond a multiple of 16 bytes."""
    size = means.element_size()
    means, factors = at_offset(means, apart[0] * size), at_offset(factors, apart[1] * size)
    shape = order.struct(kernels, x.numel())
    yield kernels.struct("Standardization")(shape, means.data_ptr(), factors.data_ptr())


def check_values(kernels, stored, x, order, bits, group_size, skip, apart):
    """Of a stored form of a tensor like ``x``."""
    rest = (x.numel(), order.inner, order.channels, bits, group_size)
    value = ops.group_affine_standardized_decompress(*stored, *rest)
    got = Written(x.numel(), x.dtype, skip=skip * x.element_size())
    codes, bounds = at_offset(stored[0], skip), stored[1]
    what = (codes.data_ptr(), bounds.data_ptr(), ELEMENT_TYPES[x.dtype], x.numel(), group_size, bits, got.data_ptr())
    struct = kernels.struct("GroupAffineDecompress")(*what)
    with statistics(kernels, order, x, *stored[2], apart) as by:
        kernels.run("group_affine_standardized_decompress", struct, by)
    same_bytes(got.tensor(), value, f"{x.dtype} {order} {rest} skip={skip} apart={apart}")


@every_dtype
def test_clamped(kernels, dtype):
    for bits in BITS:
        for group_size, numel in ((256, 2049), (96, 1000), (2048, 4100)):
            check_clamped(kernels, normal(numel, dtype), bits, group_size, bits % 2 > 0, CLAMPS[0])
    for clamp in CLAMPS:
        for numel in NUMELS[1:]:
            check_clamped(kernels, normal(numel, dtype), 4, 96, True, clamp)
        for numel in WHOLE_OR_NOT:
            for x in (hard_ranges(dtype, numel) | not_finite(dtype, numel)).values():
                check_clamped(kernels, x, 5, 96, True, clamp)
    for skip in (1, 3, 8):
        for group_size in (96, 256, 2048):
            check_clamped(kernels, normal(3000, dtype), 3, group_size, True, CLAMPS[0], skip)


# Statistics that end within a row of 32 elements, and are of one; cells that two or several statistics share, channels
# that fit no cell, warp or block, and rows of them that end within a cell.
FIRST = (
    *(Order(1, 1), Order(3, 49), Order(5, 49), Order(64, 1)),
    *(Order(2, 2100), Order(7, 16), Order(96, 8), Order(40, 3)),
)
LAST = (
    *(Order(1, 5, 1), Order(64, 130, 64), Order(70, 5, 70), Order(99, 64, 33), Order(8, 300, 8), Order(4, 130, 260)),
    *(Order(6, 49, 40), Order(16, 12, 128), Order(3, 1100, 3), Order(32, 5, 9), Order(64, 1300, 64)),
)


def numel_of(order):
    """Several runs of each statistic, or what the order says."""
    blocks = {
        Order(99, 64, 33): 3,
        Order(4, 130, 260): 2,
        Order(6, 49, 40): 3,
        Order(16, 12, 128): 4,
        Order(32, 5, 9): 32,
    }
    return order.inner * order.channels * blocks.get(order, 1) if order.channels else 4 * order.count * order.inner


@every_dtype
@pytest.mark.parametrize("order", FIRST + LAST, ids=str)
def test_statistics_and_what_follows_from_them(kernels, dtype, order):
    x = normal(numel_of(order), dtype) + 1
    for skip in (0, 1):
        check_moments(kernels, x, order, skip)
    for group_size in (32, 256, 2048):
        check_codes(kernels, x, order, group_size=group_size)
    for skip in (1, 4):
        check_codes(kernels, x, order, skip=skip)
    for apart in ((1, 0), (0, 1), (4, 8)):
        check_codes(kernels, x, order, apart=apart)


@every_dtype
def test_standardized_of_every_width_and_group_size(kernels, dtype):
    x = normal(160 * 70, dtype) * 3
    for order in (Order(70, 40), Order(70, 160, 70), Order(64, 175, 64), Order(7, 1600)):
        for bits in BITS:
            check_codes(kernels, x, order, bits, (96, 256)[bits % 2], bits % 3 > 0)
        for group_size in (32, 96, 192, 256, 544, 1056, 2048, 4096):
            check_codes(kernels, x, order, 5, group_size)


@every_dtype
def test_constant_channels_and_elements_that_are_not_finite(kernels, dtype):
    """Of a constant channel the deviation is exactly 0, and it comes back; a NaN is of its statistic alone."""
    for order in (Order(8, 100), Order(8, 100, 8), Order(4, 100, 8)):
        x = normal(800, dtype).view(*((8, 100) if order.channels == 0 else (100, 8)))
        (x if order.channels == 0 else x.t())[2] = 0.1
        check_codes(kernels, x.view(-1), order, 8)
        if order.count == 8:
            check_moments(kernels, x.view(-1), order)
        for constant in (0.1, min(torch.finfo(dtype).max, 1e9) / 64, 0.0):
            check_codes(kernels, torch.full((800,), constant, dtype=dtype), order)
            assert not check_moments(kernels, torch.full((800,), constant, dtype=dtype), order)[1].any()
    if dtype == torch.float64:  # the square of a distance from 0, where a thread has no element, would be infinite
        assert not moments(kernels, torch.full((480,), 1e200, dtype=dtype), Order(40, 3))[0][1].any()
    for order in (Order(1, 4999), Order(3, 4999, 3)):  # of several parts
        assert not check_moments(kernels, torch.full((4999 * 3,), 0.1, dtype=dtype), order)[1].any()
    for numel in WHOLE_OR_NOT:
        for x in not_finite(dtype, numel).values():
            tenth, fifth = numel // 10, numel // 5
            for order in (Order(1, numel), Order(5, fifth), Order(10, tenth), Order(10, tenth, 10), Order(5, fifth, 5)):
                check_codes(kernels, x, order, 4)
                check_moments(kernels, x, order)


@pytest.mark.parametrize("channels", [0, 8])
def test_what_is_small_beside_its_mean_keeps_its_deviation(kernels, channels):
    """A mean of 2 ** 12 leaves elements 12 bits for their distances from it. These are exact, and what they are from is
    within a unit of the last place of it: the mean is exact, and the deviation about rounded once."""
    x = (torch.arange(8 * 5000) % 5 - 2.0) + 4096
    order = Order(8, 5000, channels)
    found, _ = moments(kernels, x, order)
    assert torch.equal(found[0], torch.full((8,), 4096.0))
    assert torch.allclose(found[1], torch.full((8,), 2**0.5), rtol=2 * torch.finfo(torch.float32).eps, atol=0)


def check_given(kernels, x, order, skip=0):
    """What is stored by statistics that torch has found: they are copied, factors inverted."""
    options, wide = (4, 96, True), torch.promote_types(x.dtype, torch.float32)
    means, factors = torch.linspace(-1, 2, order.count, dtype=wide), torch.linspace(0.3, 4, order.count, dtype=wide)
    expected = reference.group_affine_standardized_compress_given(
        x, *options, SEED, STREAM, means, factors, order.inner, order.channels
    )
    found = Written(2 * order.count, wide)
    to = (found.data_ptr(), found.data_ptr() + order.count * wide.itemsize)
    kernels.run("invert_factors", ELEMENT_TYPES[x.dtype], order.count, means, factors, *map(Pointer, to))
    same_bytes(found.tensor(), expected[2], order)
    with statistics(kernels, order, x, means, factors, (0, 0)) as by:
        got = compressed(kernels, "group_affine_standardized_compress", x, *options, skip, by=(by,))
    for one, other in zip(got, expected[:2], strict=True):
        same_bytes(one, other, (x.dtype, order, skip))


@dataclass(frozen=True)
class Pointer:
    """An address, as ``Emulation.run`` asks for it."""

    address: int

    def data_ptr(self):
        return self.address


def check_activation(kernels, stored, x, order, function, added, skip=0):
    """What follows a normalization, bit for bit; up to rounding, functions of the host's library."""
    codes, bounds, (means, deviations) = stored
    given = (x.numel(), order.inner, order.channels, 4, 96)
    value = ops.group_affine_standardized_activation(codes, bounds, deviations, means, added, *given, function)
    got = Written(x.numel(), x.dtype, skip=skip * x.element_size())
    what = (codes.data_ptr(), bounds.data_ptr(), ELEMENT_TYPES[x.dtype], x.numel(), 96, 4, got.data_ptr())
    struct = kernels.struct("GroupAffineDecompress")(*what)
    other = None if added is None else at_offset(added, skip * x.element_size())
    with statistics(kernels, order, x, means, deviations, (0, 0)) as by:
        after = (by, None if other is None else other.data_ptr(), function == "none", NUMBERS.get(function, 0))
        kernels.run("group_affine_standardized_activation", struct, kernels.struct("Activation")(*after))
    if function in NUMBERS:
        # The host's library rounds otherwise than torch's vectors: erf, tanh and exp by a unit of the last place of 1,
        # by which an element is multiplied, and what follows by another.
        apart, near = (got.tensor() - value).abs().max(), 4 * torch.finfo(x.dtype).eps * value.abs().max()
        assert bool(apart <= near), (x.dtype, order, function)
    else:
        same_bytes(got.tensor(), value, (x.dtype, order, function, skip))


NUMBERS = {"gelu": 10, "gelu_tanh": 11, "silu": 17}
"""The functions' places in ``enum class Function`` of ``csrc/codec/stepwise.h``."""


def test_functions_have_these_places():
    names = re.search(r"enum class Function \{(.*?)\};", (CSRC / "codec" / "stepwise.h").read_text(), re.DOTALL)[1]
    names = [name.strip() for name in names.split(",")]
    assert [names[NUMBERS[name]] for name in ("gelu", "gelu_tanh", "silu")] == ["kGelu", "kGeluTanh", "kSilu"]
    assert names[0] == "kRelu"


@every_dtype
@pytest.mark.parametrize("order", FIRST + LAST, ids=str)
def test_given_statistics_and_activations(kernels, dtype, order):
    x = normal(numel_of(order), dtype) + 1
    stored = ops.group_affine_standardized_compress(
        x, 4, 96, True, SEED, STREAM, order.count, order.inner, order.channels
    )
    for skip in (0, 1):
        check_given(kernels, x, order, skip)
        for function in ("none", "relu"):
            for added in (None, x.flip(0)):
                check_activation(kernels, stored, x, order, function, added, skip)
    for function in NUMBERS:
        check_activation(kernels, stored, x, order, function, x.flip(0))


@every_dtype
def test_activation_of_what_is_not_finite(kernels, dtype):
    for numel in WHOLE_OR_NOT:
        for x in not_finite(dtype, numel).values():
            order = Order(5, numel // 5)
            stored = ops.group_affine_standardized_compress(x, 4, 96, True, SEED, STREAM, 5, numel // 5, 0)
            for function in ("none", "relu"):
                check_activation(kernels, stored, x, order, function, -x)
