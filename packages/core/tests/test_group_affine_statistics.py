"""Stochastic rounding as a distribution: unbiased, the predicted variance, at most one step, independent draws.

Errors are measured in steps of the element's group, step = (high - low) / levels, levels = 2**bits - 1. What a
kernel's arithmetic may add is derived once, here, with u = 2**-24, half of float32's eps (float64: 2**-53):

* ``noise``: 2**-9 step. A random byte decides, so a fraction of a step is first rounded to a multiple of 2**-8.
* ``arithmetic``: 6 * levels * u step. Encoding rounds the offset, the range, the factor and their product; decoding
  rounds the range and the step: six relative errors of at most u, of an offset of at most ``levels`` steps. The
  float64 of the tests themselves, sums of 512 values included, is far below 2**-40 step.
* ``output``: half an ulp of the dtype at the group's largest magnitude, for the value itself, and for 16-bit dtypes
  u times that magnitude, for the float32 value before.

A mean of K draws, each within one step, has a standard deviation of at most step / (2 sqrt(K)); z = 5 of them are
exceeded once in 1.7 million elements. The seeds are fixed, so a test that passes once passes always.
"""

import math

import pytest
import torch

import actcore
from actcore import reference

from .samples import BITS, DTYPES, hard_ranges, name_of, normal, uniform

Z = 5.0
GROUP = 256

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
every_width = pytest.mark.parametrize("bits", BITS)


def samples_of(dtype):
    """One group of each kind of data that an activation, or a hostile caller, brings."""
    info = torch.finfo(dtype)
    return {
        "normal": normal(GROUP, dtype),
        "1 + U": (1 + uniform(GROUP, 0, 1)).to(dtype),
        "1e4 + U": (1e4 + uniform(GROUP, 0, 1)).to(dtype),
        "tiny": uniform(GROUP, -info.smallest_normal, info.smallest_normal).to(dtype),
        "huge": uniform(GROUP, -info.max, info.max).to(dtype),
    }


def draw(x, codec, draws):
    """(draws, 256) decompressed values of one group, each draw with noise of its own: 32 places, many streams."""
    many = x.repeat(32)
    values = [
        actcore.decompress(actcore.compress(many, codec, seed=2026, stream=stream)).view(32, GROUP)
        for stream in range(draws // 32)
    ]
    return torch.cat(values)


class Steps:
    """One group in units of its step, in float64: where its elements lie, and what arithmetic may add."""

    def __init__(self, x, bits):
        self.levels = 2**bits - 1
        # An exact power of two that brings the group near 1, so that no float64 below overflows or underflows.
        largest = x.double().abs().max().item()
        self.unit = math.ldexp(1.0, min(-math.frexp(largest)[1], 1023))
        low, high = (x.double() * self.unit).aminmax()
        self.low, self.step = low, (high - low) / self.levels
        self.position = self(x)

        u = 2.0**-53 if x.dtype == torch.float64 else 2.0**-24
        info = torch.finfo(x.dtype)
        binade = max(2.0 ** (math.frexp(largest)[1] - 1), info.smallest_normal) * self.unit
        output = info.eps / 2 * binade + (u * largest * self.unit if x.dtype.itemsize == 2 else 0)
        self.noise = 2.0**-9
        self.arithmetic = 6 * self.levels * u + 2.0**-40
        self.output = output / self.step.item() if self.step > 0 else 0.0

    def __call__(self, values):
        """Values as distances from the lower bound, in steps; all 0 for a constant group."""
        distance = values.double() * self.unit - self.low
        return distance / self.step if self.step > 0 else distance


@every_dtype
@every_width
def test_unbiased(dtype, bits):
    """The mean over streams is the element, for every element, and for the group as a whole to a tighter bound."""
    draws = 512
    for name, x in samples_of(dtype).items():
        steps = Steps(x, bits)
        error = steps(draw(x, actcore.GroupAffine(bits), draws)).mean(0) - steps.position
        bias = steps.noise + steps.arithmetic + steps.output
        assert error.abs().max() <= bias + Z / (2 * math.sqrt(draws)), name
        assert error.mean().abs() <= bias + Z / (2 * math.sqrt(draws * GROUP)), name


@every_dtype
@every_width
def test_variance_is_the_predicted_one(dtype, bits):
    """An element that lies f of a step above a level has variance f (1 - f) step**2, which is at most step**2 / 4."""
    draws = 512
    for name, x in samples_of(dtype).items():
        steps = Steps(x, bits)
        variance = steps(draw(x, actcore.GroupAffine(bits), draws)).var(0, correction=0)
        # Two values, whose distance is a step and what rounding adds to both, vary by at most a quarter of its square.
        assert variance.max() <= (1 + steps.arithmetic + 2 * steps.output) ** 2 / 4, name

        # f is known up to noise and arithmetic, and f (1 - f) is no steeper than f. Rounding the output moves a value
        # by at most `output`, and so the variance by 2 * output * (1 / 2) + output**2. The sample's variance is
        # p (1 - p), with p the share of draws that went up: p has standard deviation sqrt(f (1 - f) / draws), p (1 - p)
        # has the slope 1 - 2 f, and the product of the two is at most 1 / (4 sqrt(draws)); the second-order term is
        # (p - f)**2.
        f = steps.position % 1
        rounding = steps.output + steps.output**2
        sampling = Z / (4 * math.sqrt(draws)) + Z**2 / (4 * draws)
        allowed = steps.noise + steps.arithmetic + rounding + sampling
        assert (variance - f * (1 - f)).abs().max() <= allowed, name


@every_dtype
@every_width
def test_never_a_step_away(dtype, bits):
    """Neither way: a draw is one of the two levels around the element."""
    for name, x in (hard_ranges(dtype, GROUP) | samples_of(dtype)).items():
        steps = Steps(x, bits)
        error = steps(draw(x, actcore.GroupAffine(bits), 64)) - steps.position
        # 255/256 of a step up or down, where only one byte in 256 chooses the far level, and never a whole one.
        assert error.abs().max() <= 1 - 2.0**-8 + steps.noise + steps.arithmetic + steps.output, name


@every_dtype
@every_width
def test_nearest_moves_no_element_by_more_than_half_a_step(dtype, bits):
    for name, x in (hard_ranges(dtype, GROUP) | samples_of(dtype)).items():
        steps = Steps(x, bits)
        y = actcore.decompress(actcore.compress(x, actcore.GroupAffine(bits, rounding="nearest")))
        assert (steps(y) - steps.position).abs().max() <= 0.5 + steps.arithmetic + steps.output, name


@every_width
def test_every_probability_is_exact(bits):
    """The fraction j / 256 of a step rounds up with probability j / 256: chi-square over all 256 fractions.

    With bounds 0 and ``levels`` the step is 1 and j / 256 is exact. Under the law, the squares of the 255 normalised
    deviations add up to a chi-square of 255 degrees of freedom: mean 255, standard deviation sqrt(510).
    """
    draws, levels = 16384, 2**bits - 1
    level = levels // 2
    x = level + torch.arange(256) / 256
    x = torch.cat([x, torch.tensor([0.0, levels]), torch.zeros(254)])
    codec = actcore.GroupAffine(bits, group_size=512)
    many = x.repeat(32)
    up = torch.zeros(256, dtype=torch.float64)
    for stream in range(draws // 32):
        y = actcore.decompress(actcore.compress(many, codec, seed=1, stream=stream))
        up += (y.view(32, 512)[:, :256] - level).sum(0)
    p = torch.arange(256, dtype=torch.float64) / 256
    assert up[0] == 0
    chi_square = ((up / draws - p)[1:] ** 2 * draws / (p * (1 - p))[1:]).sum()
    assert abs(chi_square - 255) <= Z * math.sqrt(510)


def test_fractions_are_rounded_to_the_noise_not_cut():
    """0.97/256 of a step is up to 2**-9 wrong in the mean if rounded to 1/256, and 0.97/256 wrong if cut to 0."""
    fraction, draws = 0.97 / 256, 256 * 1024
    x = torch.full((draws,), fraction)
    x[::256], x[1::256] = 0, 1
    y = actcore.decompress(actcore.compress(x, actcore.GroupAffine(1), seed=3))
    mean = y[(x > 0) & (x < 1)].double().mean()
    deviation = math.sqrt(fraction / draws)
    assert abs(mean - fraction) <= 2**-9 + Z * deviation
    assert 2**-9 + Z * deviation < fraction  # or cutting would pass


@every_dtype
def test_midpoints_go_up_half_of_the_time(dtype):
    n = 65536
    x = torch.full((n,), 0.5, dtype=dtype)
    x[::256], x[1::256] = 0, 1
    y = actcore.decompress(actcore.compress(x, actcore.GroupAffine(1), seed=4))
    up = y[x == 0.5].double()
    assert abs(up.mean() - 0.5) <= Z * 0.5 / math.sqrt(len(up))


def directions(seed, stream, n=32768):
    """+-1 for each of n elements: which way half a step was rounded."""
    x = torch.full((n,), 0.5)
    x[::256], x[1::256] = 0, 1
    y = actcore.decompress(actcore.compress(x, actcore.GroupAffine(1), seed=seed, stream=stream))
    return (2 * y - 1)[x == 0.5].double()


def test_neighbouring_seeds_and_streams_are_uncorrelated():
    """Keys that differ in one step, one bit or their order: no two agree more often than coins do."""
    keys = [(0, stream) for stream in range(8)] + [(seed, 0) for seed in range(1, 8)]
    keys += [(1, 2), (2, 1), (0, -1), (-1, 0), (-1, -1)]
    keys += [(0, 1 << 31), (0, 1 << 32), (1 << 32, 0), (1 << 32, 1), (0, 1 << 63), (1 << 63, 0)]
    drawn = torch.stack([directions(*key) for key in keys])
    correlation = drawn @ drawn.T / drawn.shape[1]
    correlation.fill_diagonal_(0)
    assert correlation.abs().max() <= Z / math.sqrt(drawn.shape[1])


def test_neighbouring_elements_are_uncorrelated():
    """Elements share random words (16 a block): none repeats another's byte, in its stream or the next one."""
    here, next_stream = directions(9, 0), directions(9, 1)
    n = len(here)
    for lag in (*range(1, 33), 64, 128, 254, 256):
        assert abs((here[lag:] * here[:-lag]).mean()) <= Z / math.sqrt(n - lag), lag
        assert abs((next_stream[lag:] * here[:-lag]).mean()) <= Z / math.sqrt(n - lag), lag


def test_noise_bytes_are_uniform():
    """Chi-square of the reference's noise over 256 values; the kernels take the same bytes (test_philox)."""
    n = 1 << 20
    counts = torch.bincount(reference.noise(11, 13, n), minlength=256).double()
    chi_square = ((counts - n / 256) ** 2 / (n / 256)).sum()
    assert abs(chi_square - 255) <= Z * math.sqrt(2 * 255)
