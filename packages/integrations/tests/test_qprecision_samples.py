"""Bits for each sample: the optimum, whatever the sensitivities are, and the model of rounding that it goes by."""

import itertools

import pytest
import torch

import actcore
from integrations.qmodules.device_rows import view_as_rows
from integrations.qmodules.per_sample import (
    convex,
    costs_of_totals,
    group_means,
    range_energies,
    rounding_profile,
    sample_bits,
)

PAPER = torch.tensor([0.25 / (2**bits - 1) ** 2 for bits in range(1, 9)], dtype=torch.float64)


def cost(sensitivities, profile, bits):
    return (sensitivities.double() * profile[bits.long() - 1]).sum().item()


def test_the_optimum_by_brute_force():
    """Every budget of 4 samples with 1 to 6 bits, at sensitivities over four decades."""
    torch.manual_seed(0)
    choices = torch.tensor(list(itertools.product(range(1, 7), repeat=4)))
    for _ in range(8):
        sensitivities = 10 ** (4 * torch.rand(4))
        reached = (sensitivities.double() * PAPER[choices - 1]).sum(1)
        totals, costs = costs_of_totals(sensitivities, PAPER, most=6)
        for total in range(4, 25):
            bits = sample_bits(sensitivities, PAPER, total, most=6)
            assert bits.sum() == total
            best = reached[choices.sum(1) <= total].min().item()
            # Sums of 4 numbers in float64, in another order.
            assert cost(sensitivities, PAPER, bits) == pytest.approx(best, rel=1e-12)
            assert costs[totals.index(total)].item() == pytest.approx(best, rel=1e-9)


def test_the_optimum_of_many_samples_is_that_of_the_allocator():
    """The C++ allocator solves the same problem as a knapsack; its gap is zero where it is proven optimal."""
    torch.manual_seed(1)
    sensitivities = torch.rand(60) ** 4
    sizes = [{bits: bits for bits in range(1, 9)}] * 60
    for total in (61, 90, 120, 200, 333):
        bits = sample_bits(sensitivities, PAPER * 4, total)
        solved = actcore.allocate_bits(sensitivities.tolist(), sizes, total)
        assert cost(sensitivities, PAPER * 4, bits) <= solved.cost * (1 + 1e-6)


@pytest.mark.parametrize("total", [10, 15, 23, 80])
def test_equal_samples_differ_by_at_most_a_bit(total):
    for value in (0.0, 1e-30, 1.0, 1e30, torch.nan, torch.inf):
        bits = sample_bits(torch.full((10,), value), PAPER, total)
        assert bits.sum() == total
        assert bits.max() - bits.min() <= 1, value


def test_what_is_not_finite_gets_the_most_and_what_is_zero_the_least():
    bits = sample_bits(torch.tensor([1.0, torch.nan, 0.0, torch.inf, 1e-20, 0.0]), PAPER, 6 + 14 + 3)
    assert bits[1] == bits[3] == 8
    assert bits.tolist()[2::3] == [1, 1]
    assert bits[0] == 4


def test_more_rows_than_65535():
    """ActNN packed the rows beyond 65,535 never (A7)."""
    torch.manual_seed(0)
    sensitivities = torch.rand(70_000)
    bits = sample_bits(sensitivities, PAPER, 140_001)
    assert bits.sum(dtype=torch.int64) == 140_001
    order = sensitivities.argsort()
    assert (bits[order].int().diff() >= 0).all()


def test_one_row_and_the_smallest_and_largest_budgets():
    for total in range(1, 9):
        assert sample_bits(torch.tensor([3.0]), PAPER, total).tolist() == [total]
    assert sample_bits(torch.rand(5), PAPER, 5).tolist() == [1] * 5
    assert sample_bits(torch.rand(5), PAPER, 40).tolist() == [8] * 5
    assert sample_bits(torch.rand(5), PAPER, 15, most=3).tolist() == [3] * 5
    assert sample_bits(torch.rand(5), PAPER, 5, most=1).tolist() == [1] * 5


def samples(name):
    torch.manual_seed(0)
    x = torch.randn(8, 2048) * torch.logspace(-2, 2, 8)[:, None]
    return {"normal": x, "relu": x.relu(), "uniform": torch.rand(8, 2048), "offset": x + 1000}[name]


@pytest.mark.parametrize("name", ["normal", "relu", "uniform", "offset"])
def test_the_variance_predicted_is_the_variance_measured(name):
    """8 samples of very different ranges; the profile is that of all.

    The measured sum has 16,384 terms, a mean over 20 roundings: it scatters by less than 2 %. The rest is that samples
    of one distribution have profiles of their own: at 1 bit a normal group's depends on how far its extremes lie.
    """
    x = samples(name)
    energies = range_energies(x, 256)
    profile = rounding_profile(x, 256)
    for bits in (1, 2, 4, 8):
        codec = actcore.GroupAffine(bits)
        errors = [actcore.decompress(actcore.compress(x, codec, stream=i)).sub(x).square().sum(1) for i in range(20)]
        measured = torch.stack(errors).mean(0, dtype=torch.float64)
        ratio = energies.sum() * profile[bits - 1] / measured.sum()
        assert 0.9 < ratio < 1.1, (bits, ratio)
        # Nearly two samples in three lie within a standard deviation of the profile; none is off by half.
        assert ((energies * profile[bits - 1] / measured).log2().abs() < 0.6).all()


def test_zeros_of_relu_have_no_error_and_the_profile_knows():
    """Half the elements are a group's lower bound, so half the variance is there; a bound of 1/4 misses it."""
    profile = rounding_profile(samples("relu"), 256)
    # 1/6 for evenly spread data within a step, halved; at 4 bits and more a step is narrow enough for that. 64 groups
    # of 256 elements: the share of zeros is known to 1 %, the mean of f(1-f) better.
    expected = 1 / 12 / (2.0 ** torch.arange(4, 9) - 1) ** 2
    assert torch.allclose(profile[3:], expected.double(), rtol=0.05)


@pytest.mark.parametrize("size", [100, 256, 700])
def test_groups_end_with_their_row(size):
    """The last group of a row is smaller, and its own range counts."""
    torch.manual_seed(0)
    x = torch.randn(5, size)
    expected = [sum(len(group) * (group.max() - group.min()) ** 2 for group in row.split(256)) for row in x]
    # Sums in float32 against float64.
    assert torch.allclose(range_energies(x, 256), torch.stack(expected).double(), rtol=1e-5)


def test_weights_of_groups():
    """What each element counts, by the mean over its group."""
    torch.manual_seed(0)
    x, weights = torch.randn(5, 700), torch.rand(1, 700)
    means = [group.mean() for group in weights[0].split(256)]
    assert torch.allclose(group_means(weights, 256)[0], torch.stack(means))
    expected = [
        sum(
            len(group) * mean * (group.max() - group.min()) ** 2
            for group, mean in zip(row.split(256), means, strict=True)
        )
        for row in x
    ]
    found = range_energies(x, 256, group_means(weights, 256))
    assert torch.allclose(found, torch.stack(expected).double(), rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtypes_and_huge_ranges(dtype):
    big = torch.finfo(dtype).max
    x = torch.tensor([[big, -big] * 64, [1.0, 0.0] * 64], dtype=dtype)
    energies = range_energies(x, 128)
    assert energies[1] == 128
    assert energies[0] > 1e9
    profile = rounding_profile(x, 128)
    assert profile.isfinite().all()
    bits = sample_bits(energies, profile, 9)
    assert bits.tolist() == [8, 1]


def test_a_profile_of_what_has_none():
    """Constant, empty and not finite inputs: the profile of evenly spread data."""
    usual = 1 / (6 * (2.0 ** torch.arange(1, 9, dtype=torch.float64) - 1) ** 2)
    for x in (torch.ones(4, 300), torch.ones(0, 300), torch.ones(3, 0), torch.full((4, 300), torch.nan)):
        assert torch.allclose(rounding_profile(x, 256), usual)
    mixed = torch.rand(4, 512)
    mixed[0, 0] = torch.nan  # one group of eight
    assert rounding_profile(mixed, 256).isfinite().all()
    assert range_energies(mixed, 256).isnan().tolist() == [True, False, False, False]


def test_two_valued_data_need_one_bit():
    """Both values are codes at every width, so no bit gains anything, next to data that need them."""
    profile = rounding_profile(torch.rand(4, 512).round(), 256)
    assert profile[0] < 1e-5


def test_the_hull_of_a_profile_that_is_not_convex():
    """Values at thirds of the range are codes of 2 and of 4 bits, not of 3."""
    x = (torch.arange(4 * 512) % 4).view(4, 512) / 3
    profile = rounding_profile(x, 256)
    gains = profile[:-1] - profile[1:]
    assert (gains > 0).all()
    assert (gains.diff() < 0).all()
    given = torch.tensor([9.0, 8.0, 3.0, 3.0, 1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    # By hand: corners at 1, 3, 5, 7 and 8 bits, straight in between.
    hull = torch.tensor([9.0, 6.0, 3.0, 2.0, 1.0, 0.5, 0.0, 0.0], dtype=torch.float64)
    assert (convex(given) - hull).abs().max() < 1e-4


def test_rows_lie_as_in_memory():
    x = torch.randn(4, 3, 5, 5)
    assert torch.equal(view_as_rows(x), x.flatten(1))
    last = x.to(memory_format=torch.channels_last)
    assert torch.equal(view_as_rows(last), x.permute(0, 2, 3, 1).flatten(1))
    assert view_as_rows(last).data_ptr() == last.data_ptr()
    turned = x.transpose(0, 1)
    assert torch.equal(view_as_rows(turned), turned.flatten(1))
    assert torch.equal(view_as_rows(x[:, :, 1:]), x[:, :, 1:].flatten(1))
    assert torch.equal(view_as_rows(x[:, :1].expand(4, 6, 5, 5)), x[:, :1].expand(4, 6, 5, 5).flatten(1))
