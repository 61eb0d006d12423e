"""``group_affine_standardized_compress``: statistics within their rounding, and what follows from them bit for bit."""

from itertools import product

import pytest
import torch

from actcore import reference

from .samples import DTYPES, name_of, normal, not_finite

ops = torch.ops.actcore


def agree(x, statistics, inner, channels, bits=4, group_size=96, stochastic=True):
    given = (bits, group_size, stochastic, 5, 7, statistics, inner, channels)
    *stored, found = ops.group_affine_standardized_compress(x, *given)
    for one, expected in zip(stored, reference.group_affine_standardized_codes(x, found, *given), strict=True):
        assert torch.equal(one.nan_to_num(-77.0), expected.nan_to_num(-77.0))
    back = (*stored, found, x.numel(), inner, channels, bits, group_size)
    value = ops.group_affine_standardized_decompress(*back)
    expected = reference.group_affine_standardized_decompress(*back)
    assert torch.equal(value.nan_to_num(-77.0), expected.nan_to_num(-77.0))
    return found


def close(x, statistics, inner, channels):
    """At most 64 elements are added before a sum goes on in float64. With means of the size of deviations, that rounds
    either by 64 units of the last place at most, and their last rounding by one."""
    found = agree(x, statistics, inner, channels)
    expected = reference.group_affine_standardized_compress(x, 4, 96, True, 5, 7, statistics, inner, channels)[2]
    scale = expected.abs().sum(0)
    assert ((found - expected).abs() <= 65 * torch.finfo(found.dtype).eps * scale).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize(("blocks", "channels", "each"), [(1, 1, 1), (1, 64, 1), (1, 70, 1), (3, 33, 1), (2, 260, 130)])
def test_channels_last(dtype, blocks, channels, each):
    for inner in (1, 5, 64, 130):
        close(normal(blocks * channels * inner, dtype) + 1, blocks * channels // each, inner, channels)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize(("count", "inner", "times"), [(1, 1, 1), (3, 49, 1), (5, 49, 4), (64, 1, 9), (2, 2100, 3)])
def test_channels_first(dtype, count, inner, times):
    close(normal(count * inner * times, dtype) + 1, count, inner, 0)


@pytest.mark.parametrize("channels", [0, 8])
def test_what_is_small_beside_its_mean_keeps_its_deviation(channels):
    """A mean of 2 ** 12 leaves elements 12 bits for their distances from it. These are exact, and so are their sums."""
    x = torch.arange(8 * 1000) % 5 - 2.0
    found = agree(x + 4096, 8, 1000, channels)
    assert torch.allclose(found[1], torch.full((8,), 2**0.5), rtol=1e-6)


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("group_size", [32, 256, 1024, 4096])
def test_all_widths(bits, group_size):
    for channels in (64, 70):
        agree(
            normal(channels * 160, torch.float32), channels, 160, channels, bits, group_size, stochastic=bits % 2 == 0
        )


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_what_is_constant_comes_back(dtype):
    """So large, too, that two elements have no sum."""
    for channels, constant in product((0, 1, 8), (3.0, torch.finfo(dtype).max)):
        x = torch.full((800,), constant, dtype=dtype)
        *stored, found = ops.group_affine_standardized_compress(x, 4, 96, True, 5, 7, 8, 100, channels)
        assert torch.equal(ops.group_affine_standardized_decompress(*stored, found, 800, 100, channels, 4, 96), x)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_what_is_not_finite_is_of_its_statistic_alone(dtype):
    for x in not_finite(dtype).values():
        agree(x, 1, max(1, x.numel()), 0)


@pytest.mark.parametrize(("inner", "channels"), [(4000, 64), (4000, 0)])
def test_many_threads_and_one_give_the_same(inner, channels):
    x = normal(64 * 4000, torch.float32)
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            found.append(ops.group_affine_standardized_compress(x, 4, 256, True, 1, 2, 64, inner, channels))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def given(x, means, factors, inner, channels, bits=4, group_size=96, stochastic=True):
    """What the operator writes of statistics that the caller has, which is the reference's."""
    options = (bits, group_size, stochastic, 5, 7)
    expected = reference.group_affine_standardized_compress_given(x, *options, means, factors, inner, channels)
    written = [torch.full_like(part, 77) for part in expected]
    ops.group_affine_standardized_compress.given(x, *options, means, factors, inner, channels, *written)
    for one, other in zip(written, expected, strict=True):
        assert torch.equal(one.nan_to_num(-77.0), other.nan_to_num(-77.0))
    return written


ORDERS = [(1, 1, 0, 1), (5, 49, 0, 4), (64, 1, 0, 9), (64, 5, 64, 1), (99, 5, 33, 1), (4, 130, 260, 1)]


def elements(order, dtype):
    count, inner, channels, times = order
    return normal(inner * channels * max(1, count // channels) if channels else count * inner * times, dtype) + 1


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_by_given_statistics(dtype, order):
    """Such as a batch norm saves. Mean and inverse deviation of the input give what the other overload gives."""
    count, inner, channels, _ = order
    x = elements(order, dtype)
    wide = torch.promote_types(dtype, torch.float32)
    means, factors = torch.linspace(-1, 2, count, dtype=wide), torch.linspace(0.3, 4, count, dtype=wide)
    for bits in range(1, 9):
        given(x, means, factors, inner, channels, bits, (32, 256)[bits % 2], bits % 3 > 0)
    if x.numel() > count:
        *stored, found = ops.group_affine_standardized_compress(x, 4, 96, True, 5, 7, count, inner, channels)
        same = given(x, found[0].contiguous(), found[1].reciprocal(), inner, channels)
        assert all(torch.equal(one, other) for one, other in zip(stored, same[:2], strict=True))


def test_of_an_infinite_factor_nothing_finite_comes_back():
    """A batch norm without epsilon divides a constant channel by 0: its result is not finite, either."""
    x = torch.stack([torch.full((300,), 3.0), normal(300, torch.float32)]).view(-1)
    stored = given(x, torch.tensor([3.0, 0.0]), torch.tensor([torch.inf, 1.0]), 300, 0, group_size=32)
    back = ops.group_affine_standardized_decompress(*stored, 600, 300, 0, 4, 32)
    assert back[:300].isnan().all()
    assert (back[320:] - x[320:]).abs().max() < 0.5


FUNCTIONS = ["none", "relu", "silu", "gelu", "gelu_tanh"]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_activation_is_each_of_torchs_operators(dtype, order, function):
    """Bit for bit what operators make one after the other: the values, times the scale and plus the shift, plus what is
    added, and the function of torch."""
    count, inner, channels, _ = order
    x = elements(order, dtype)
    codes, bounds, found = ops.group_affine_standardized_compress(x, 5, 96, True, 5, 7, count, inner, channels)
    scales, shifts = torch.linspace(-2, 2, count, dtype=found.dtype), found[0].contiguous()
    for added in (None, x.flip(0)):
        given = (codes, bounds, scales, shifts, added, x.numel(), inner, channels, 5, 96, function)
        got = ops.group_affine_standardized_activation(*given)
        assert torch.equal(got, reference.group_affine_standardized_activation(*given))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_activation_of_many_elements_for_any_number_of_threads(function):
    """More than are decoded at a time: torch's functions round alike, wherever a part begins."""
    x = normal(64 * 5000, torch.float32)
    codes, bounds, found = ops.group_affine_standardized_compress(x, 5, 96, True, 5, 7, 64, 5000, 64)
    given = (codes, bounds, found[1].contiguous(), found[0].contiguous(), x, x.numel(), 5000, 64, 5, 96, function)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = reference.group_affine_standardized_activation(*given)
        for count in (1, 3):
            torch.set_num_threads(count)
            assert torch.equal(ops.group_affine_standardized_activation(*given), expected)
    finally:
        torch.set_num_threads(threads)


def test_activation_of_nothing():
    codes, bounds, found = ops.group_affine_standardized_compress(torch.empty(0), 4, 96, True, 5, 7, 3, 1, 0)
    means, deviations = found
    given = (codes, bounds, deviations, means, None, 0, 1, 0, 4, 96, "relu")
    assert ops.group_affine_standardized_activation(*given).shape == (0,)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_activation_of_what_is_not_finite(dtype):
    for x in not_finite(dtype).values():
        order = (x.numel(), max(1, x.numel()), 0, 4, 96)
        codes, bounds, found = ops.group_affine_standardized_compress(x, 4, 96, True, 5, 7, 1, max(1, x.numel()), 0)
        for function in ("none", "relu"):
            given = (codes, bounds, torch.ones(1, dtype=found.dtype), torch.zeros(1, dtype=found.dtype), -x.view(-1))
            got = ops.group_affine_standardized_activation(*given, *order, function)
            expected = reference.group_affine_standardized_activation(*given, *order, function)
            assert torch.equal(got.nan_to_num(-77.0), expected.nan_to_num(-77.0))
