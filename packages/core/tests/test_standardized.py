"""``group_affine_standardized_compress``: what subtracting, multiplying and compressing give, bit for bit."""

import pytest
import torch

from actcore import reference

from .samples import DTYPES, name_of, normal, not_finite

ops = torch.ops.actcore


def tables(entries, dtype):
    wide = torch.promote_types(dtype, torch.float32)
    return torch.linspace(-2, 3, entries, dtype=wide), torch.linspace(0.1, 4, entries, dtype=wide)


def agree(x, entries, channels, inner, bits=4, group_size=96, stochastic=True):
    mean, factor = tables(entries, x.dtype)
    given = (x, mean, factor, channels, inner, bits, group_size, stochastic, 5, 7)
    found = ops.group_affine_standardized_compress(*given)
    for one, expected in zip(found, reference.group_affine_standardized_compress(*given), strict=True):
        assert torch.equal(one.nan_to_num(-77.0), expected.nan_to_num(-77.0))
    back = (*found, mean, factor, x.numel(), channels, inner, bits, group_size)
    value, expected = ops.group_affine_standardized_decompress(*back), None
    expected = reference.group_affine_standardized_decompress(*back)
    assert torch.equal(value.nan_to_num(-77.0), expected.nan_to_num(-77.0))


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize(("rows", "channels"), [(1, 1), (1, 3), (1, 64), (1, 70), (3, 33)])
def test_channels_last(dtype, rows, channels):
    for inner in (1, 5, 64):
        agree(normal(rows * channels * inner, dtype), rows * channels, channels, inner)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize(("entries", "inner", "times"), [(1, 1, 1), (3, 49, 1), (5, 49, 4), (64, 1, 9), (2, 1000, 3)])
def test_channels_first(dtype, entries, inner, times):
    agree(normal(entries * inner * times, dtype), entries, 0, inner)


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("group_size", [32, 256, 1024, 4096])
def test_all_widths(bits, group_size):
    for channels in (64, 70):
        agree(
            normal(channels * 160, torch.float32), channels, channels, 160, bits, group_size, stochastic=bits % 2 == 0
        )


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_what_is_not_finite_is_of_its_group_alone(dtype):
    for x in not_finite(dtype).values():
        agree(x, 1, 0, max(1, x.numel()))


def test_many_threads_and_one_give_the_same():
    x = normal(64 * 4000, torch.float32)
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            found.append(ops.group_affine_standardized_compress(x, *tables(64, x.dtype), 64, 4000, 4, 256, True, 1, 2))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
