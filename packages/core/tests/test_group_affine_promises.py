"""What the group-affine codec promises of single values: bounds, constants, what is not finite, and padding."""

import math

import pytest
import torch

import actcore

from .samples import BITS, DTYPES, hard_ranges, name_of, normal, not_finite, same_bits

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
every_width = pytest.mark.parametrize("bits", BITS)
both_roundings = pytest.mark.parametrize("rounding", ["stochastic", "nearest"])


def round_trip(x, codec, **key):
    return actcore.decompress(actcore.compress(x, codec, **key))


@every_dtype
@every_width
@both_roundings
def test_values_stay_within_their_groups_bounds_and_reach_them(dtype, bits, rounding):
    """A group's smallest and largest elements come back exactly, whatever the range."""
    for name, x in hard_ranges(dtype, 512).items():
        y = round_trip(x, actcore.GroupAffine(bits, rounding=rounding))
        for before, after in zip(x.view(2, 256), y.view(2, 256), strict=True):
            assert after.min() == before.min(), name
            assert after.max() == before.max(), name


@every_dtype
@every_width
@both_roundings
def test_constant_groups_are_exact(dtype, bits, rounding):
    info = torch.finfo(dtype)
    for value in (0.0, -1.0, 0.1, 1e4, info.smallest_normal * info.eps, -info.max):
        x = torch.tensor(value, dtype=torch.float64).to(dtype).repeat(600)
        assert same_bits(round_trip(x, actcore.GroupAffine(bits, rounding=rounding)), x), value


@every_dtype
def test_two_valued_groups_are_exact(dtype):
    """One bit and two values: a ReLU's dead half, a dropout mask."""
    x = normal(600, dtype).gt(0).to(dtype) * 3 - 1
    assert same_bits(round_trip(x, actcore.GroupAffine(1)), x)


@every_dtype
def test_integers_that_the_codes_number_are_exact_under_nearest(dtype):
    """With high - low = levels the step is 1, and no integer between the bounds moves."""
    for bits in BITS:
        x = torch.arange(512).remainder(2**bits).to(dtype)
        assert same_bits(round_trip(x, actcore.GroupAffine(bits, rounding="nearest")), x), bits


@every_dtype
def test_negative_zero_comes_back_as_zero(dtype):
    """Bounds carry no negative zero, so that the bytes do not depend on the order in which elements are compared."""
    y = round_trip(torch.full((600,), -0.0, dtype=dtype), actcore.GroupAffine(4))
    assert same_bits(y, torch.zeros(600, dtype=dtype))


@every_dtype
@every_width
@both_roundings
def test_what_is_not_finite_decompresses_to_nan_and_nothing_else_does(dtype, bits, rounding):
    """With one bit, all of its group does."""
    for name, x in not_finite(dtype).items():
        y = round_trip(x, actcore.GroupAffine(bits, rounding=rounding))
        lost = ~x.isfinite()
        if bits == 1:
            lost = torch.cat([part.any().expand(len(part)) for part in lost.split(256)])
        assert torch.equal(y.isnan(), lost), name
        assert y[~lost].isfinite().all(), name


@every_dtype
@pytest.mark.parametrize("bits", [2, 4, 8])
@both_roundings
def test_elements_beside_one_that_is_not_finite_lie_between_their_own_bounds(dtype, bits, rounding):
    """As if they were the group, with one step fewer, whatever their range."""
    for name, x in (hard_ranges(dtype, 512) | not_finite(dtype, 512)).items():
        x[300], x[5] = math.nan, -math.inf
        y = round_trip(x, actcore.GroupAffine(bits, rounding=rounding), stream=3)
        for before, after in zip(x.view(2, 256), y.view(2, 256), strict=True):
            finite = before.isfinite()
            if not finite.any():
                continue
            before, after = before[finite].double(), after[finite].double()
            low, high = before.min(), before.max()
            assert (after.min(), after.max()) == (low, high), name
            step = high / (2**bits - 2) - low / (2**bits - 2)
            # Beside the step: half a unit in the last place of the largest value, in the dtype and where it is
            # computed, or of the smallest one that there is.
            info = torch.finfo(dtype)
            rest = before.abs().max() * info.eps + info.smallest_normal * info.eps
            assert (after - before).abs().max() <= (step if rounding == "stochastic" else step / 2) + rest, name


@every_dtype
@every_width
def test_equal_elements_beside_one_that_is_not_finite_are_exact(dtype, bits):
    x = torch.full((600,), 0.1, dtype=dtype)
    x[[3, 511, 599]] = torch.tensor([math.nan, math.inf, -math.inf], dtype=dtype)
    assert same_bits(round_trip(x, actcore.GroupAffine(bits)), x.where(x.isfinite(), math.nan))


def test_rounding_beside_one_that_is_not_finite_is_unbiased():
    x = normal(256)
    x[7] = math.nan
    codec, draws = actcore.GroupAffine(2), 4096
    mean = torch.stack([round_trip(x, codec, stream=stream) for stream in range(draws)]).double().nanmean(0)
    finite = x.isfinite()
    step = (x[finite].max() - x[finite].min()) / 2
    # An element's deviation is at most half a step, and the mean is beyond 5 of its own once in 1.7 million.
    assert (mean - x)[finite].abs().max() <= 5 * step / 2 / draws**0.5 + 2**-9 * step


def test_the_last_group_is_not_padded():
    """A tail far from zero keeps a range of its own: padding with zeros would widen it to 0..1001."""
    x = torch.linspace(1000, 1001, 300)
    y = round_trip(x, actcore.GroupAffine(4, rounding="nearest"))
    tail = x[256:]
    step = (tail.max() - tail.min()) / 15
    # Half a step, and half an ulp (2**-15 just below 1024) of the decompressed value.
    assert (y[256:] - tail).abs().max() <= step / 2 + 2**-15


def test_a_groups_bytes_do_not_depend_on_its_neighbours():
    x = normal(1024)
    alone = actcore.compress(x[:256], actcore.GroupAffine(4), seed=1)
    among = actcore.compress(x, actcore.GroupAffine(4), seed=1)
    assert same_bits(among.payload[0][:128], alone.payload[0])
    assert same_bits(among.payload[1][:1], alone.payload[1])


def test_every_element_of_a_group_counts_towards_its_range():
    """The extremes of group 1 may stand anywhere in it; a vector kernel could overlook its tail."""
    for numel in (300, 511, 512, 600):
        last = min(numel, 512)
        for place in range(256, last):
            x = torch.zeros(numel)
            x[place] = 1.0
            low, high = actcore.compress(x, actcore.GroupAffine(4)).payload[1][1].tolist()
            assert (low, high) == (0.0, 1.0), (numel, place)


@every_dtype
def test_nan_in_the_tail_is_seen(dtype):
    """At every place of a partial group, where vector and scalar loops meet."""
    for place in range(256, 300):
        x = normal(300, dtype)
        x[place] = math.nan
        y = round_trip(x, actcore.GroupAffine(4))
        assert y.isnan().nonzero().tolist() == [[place]], place
        assert (y - x).nan_to_num().abs().max() <= 1, place  # a step, of less than 7 in 14
