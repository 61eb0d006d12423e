"""Float8's stochastic rounding as a distribution: unbiased, the predicted variance, never a spacing away.

Errors are measured in spacings: the distance of neighbouring codes around an element, times bound / largest. What a
kernel's arithmetic may add, with u = 2**-24, half of float32's eps (float64 is also rounded to it once):

* ``noise``: 2**-9 spacing. A random byte decides, so a fraction of a spacing is first rounded to a multiple of 2**-8.
* ``arithmetic``: 16 * 6 * u spacing. Encoding rounds the factor, its product with the element and that to float32;
  decoding rounds the step and its product with the code: five relative errors of at most u, and one for the second
  order, of a value of at most 16 spacings (2**(mantissa bits + 1)).
* ``output``: half an ulp of the dtype at the decompressed value, which is at most a spacing above the element and so
  at most in the next binade; half the dtype's smallest number at least.

z = 5 standard deviations are exceeded once in 1.7 million elements. The seeds are fixed.
"""

import math

import pytest
import torch

import actcore

from .samples import DTYPES, FORMATS, hard_ranges, name_of, normal, uniform

Z = 5.0
GROUP = 256
SHAPES = {"e4m3": (3, -6, 448.0), "e5m2": (2, -14, 57344.0)}

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
every_format = pytest.mark.parametrize("format", FORMATS)


def samples_of(dtype):
    info = torch.finfo(dtype)
    return {
        "normal": normal(GROUP, dtype),
        "every binade": normal(GROUP, dtype) * torch.logspace(0, -20, GROUP, 2, dtype=torch.float64).to(dtype),
        "1 + U": (1 + uniform(GROUP, 0, 1)).to(dtype),
        "1e4 + U": (1e4 + uniform(GROUP, 0, 1)).to(dtype),
        "tiny": uniform(GROUP, -info.smallest_normal, info.smallest_normal).to(dtype),
        "huge": uniform(GROUP, -info.max, info.max).to(dtype),
    }


def draw(x, codec, draws):
    """(draws, 256) decompressed values of one group, each draw with noise of its own."""
    many = x.repeat(32)
    values = [
        actcore.decompress(actcore.compress(many, codec, seed=2026, stream=stream)).view(32, GROUP)
        for stream in range(draws // 32)
    ]
    return torch.cat(values)


class Spacings:
    """One group in units of its elements' spacings, in float64."""

    def __init__(self, x, format):
        mantissa, smallest, largest = SHAPES[format]
        magnitude = x.double().abs()
        bound = magnitude.max().item()
        # An exact power of two that brings the group near 1, so that no float64 below overflows or underflows.
        self.unit = math.ldexp(1.0, min(-math.frexp(bound)[1], 1023))
        self.step = bound * self.unit / largest
        self.x = x.double() * self.unit
        exponent = (torch.frexp(self.x.abs() / self.step).exponent - 1).clamp(min=smallest) if self.step else x * 0
        self.spacing = torch.ldexp(torch.ones_like(self.x), exponent - mantissa) * self.step
        self.position = self.x.abs() / self.spacing if self.step else self.x * 0

        info = torch.finfo(x.dtype)
        smallest_number = info.smallest_normal * self.unit
        ulp = info.eps * 2 * self.x.abs().clamp(min=smallest_number)
        self.noise = 2.0**-9
        self.arithmetic = 16 * 6 * 2.0**-24
        self.output = ulp / 2 / self.spacing if self.step else self.x * 0

    def error(self, values):
        """(draws, 256) distances from the elements, in spacings."""
        return (values.double() * self.unit - self.x) / self.spacing if self.step else values.double()


@every_dtype
@every_format
def test_unbiased(dtype, format):
    draws = 512
    for name, x in samples_of(dtype).items():
        spacings = Spacings(x, format)
        error = spacings.error(draw(x, actcore.Float8(format), draws)).mean(0)
        bias = spacings.noise + spacings.arithmetic + spacings.output
        assert torch.all(error.abs() <= bias + Z / (2 * math.sqrt(draws))), name
        assert error.mean().abs() <= bias.mean() + Z / (2 * math.sqrt(draws * GROUP)), name


@every_dtype
@every_format
def test_variance_is_the_predicted_one(dtype, format):
    """f (1 - f) spacing**2 for an element that lies f of a spacing above a code; the terms are those of GroupAffine."""
    draws = 512
    for name, x in samples_of(dtype).items():
        spacings = Spacings(x, format)
        variance = spacings.error(draw(x, actcore.Float8(format), draws)).var(0, correction=0)
        assert torch.all(variance <= (1 + spacings.arithmetic + 2 * spacings.output) ** 2 / 4), name
        f = spacings.position % 1
        rounding = spacings.output + spacings.output**2
        sampling = Z / (4 * math.sqrt(draws)) + Z**2 / (4 * draws)
        allowed = spacings.noise + spacings.arithmetic + rounding + sampling
        assert torch.all((variance - f * (1 - f)).abs() <= allowed), name


@every_dtype
@every_format
def test_never_a_spacing_away(dtype, format):
    for name, x in (hard_ranges(dtype, GROUP) | samples_of(dtype)).items():
        spacings = Spacings(x, format)
        error = spacings.error(draw(x, actcore.Float8(format), 64))
        allowed = 1 - 2.0**-8 + spacings.noise + spacings.arithmetic + spacings.output
        assert torch.all(error.abs() <= allowed), name


@every_dtype
@every_format
def test_nearest_moves_no_element_by_more_than_half_a_spacing(dtype, format):
    for name, x in (hard_ranges(dtype, GROUP) | samples_of(dtype)).items():
        spacings = Spacings(x, format)
        y = actcore.decompress(actcore.compress(x, actcore.Float8(format, rounding="nearest")))
        assert torch.all(spacings.error(y).abs() <= 0.5 + spacings.arithmetic + spacings.output), name


@every_format
@pytest.mark.parametrize("place", ["top", "middle", "smallest normal", "subnormal"])
def test_every_probability_is_exact(format, place):
    """j / 256 of a spacing rounds away from zero with probability j / 256: chi-square over all fractions.

    From the last code before a power of two, where rounding carries into the exponent. With the format's largest number
    in the group the factor is 1, and j / 256 of a spacing is exact.
    """
    mantissa, smallest, largest = SHAPES[format]
    draws = 8192
    places = {"top": math.frexp(largest)[1] - 1, "middle": 0, "smallest normal": smallest}
    exponent = places.get(place, smallest - mantissa + 1)
    spacing = 2.0 ** (max(exponent - 1, smallest) - mantissa)
    below = 2.0**exponent - spacing
    x = -(below + spacing * torch.arange(256, dtype=torch.float64) / 256).float()
    many = torch.cat([x, torch.full((32,), largest)]).repeat(32)
    away = torch.zeros(256, dtype=torch.float64)
    for stream in range(draws // 32):
        y = actcore.decompress(actcore.compress(many, actcore.Float8(format, 288), seed=1, stream=stream))
        away += ((-y.double().view(32, 288)[:, :256] - below) / spacing).sum(0)
    p = torch.arange(256, dtype=torch.float64) / 256
    assert away[0] == 0
    chi_square = ((away / draws - p)[1:] ** 2 * draws / (p * (1 - p))[1:]).sum()
    assert abs(chi_square - 255) <= Z * math.sqrt(510)
