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
