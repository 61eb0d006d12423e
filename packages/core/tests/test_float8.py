"""``Float8``: every bit of the reference, torch's own numbers, and what the codec promises of single values."""

import math

import pytest
import torch

import actcore
from actcore import reference

from .samples import DTYPES, FORMATS, GROUP_SIZES, NUMELS, hard_ranges, name_of, normal, not_finite, same_bits

SEED, STREAM = 0x0123_4567_89AB_CDEF, -3
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}

ops = torch.ops.actcore
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
every_format = pytest.mark.parametrize("format", FORMATS)
both_roundings = pytest.mark.parametrize("stochastic", [True, False], ids=["stochastic", "nearest"])


def assert_as_reference(x, format, group_size, stochastic, case=""):
    options = (FORMATS[format], group_size, stochastic, SEED, STREAM)
    codes, bounds = ops.float8_compress(x, *options)
    expected_codes, expected_bounds = reference.float8_compress(x, *options)
    assert same_bits(bounds, expected_bounds), case
    assert same_bits(codes, expected_codes), case
    value = ops.float8_decompress(codes, bounds, FORMATS[format], group_size)
    assert same_bits(value, reference.float8_decompress(codes, bounds, FORMATS[format], group_size)), case


def round_trip(x, codec, **key):
    return actcore.decompress(actcore.compress(x, codec, **key))


@every_dtype
@every_format
@both_roundings
def test_every_length_and_group_size(dtype, format, stochastic):
    for group_size in GROUP_SIZES:
        assert_as_reference(normal(NUMELS[-1], dtype), format, group_size, stochastic, group_size)
    for numel in NUMELS:
        for group_size in (96, 256):
            assert_as_reference(normal(numel, dtype), format, group_size, stochastic, numel)


@every_dtype
@every_format
@both_roundings
def test_hard_ranges_and_groups_that_are_not_finite(dtype, format, stochastic):
    for name, x in (hard_ranges(dtype) | not_finite(dtype)).items():
        assert_as_reference(x, format, 256, stochastic, name)


@every_dtype
@every_format
def test_values_of_every_binade(dtype, format):
    """From the bound down to zeros: normal codes, subnormal ones, and both signs of what vanishes."""
    x = normal(1024, dtype) * torch.logspace(0, -45, 1024, 2, dtype=torch.float64).to(dtype)
    for stochastic in (True, False):
        assert_as_reference(x, format, 1024, stochastic)


@every_dtype
def test_misaligned_input(dtype):
    memory = normal(2000, dtype)
    for start in (1, 2, 3, 5, 7, 9, 15):
        assert_as_reference(memory[start : start + 1000], "e4m3", 256, stochastic=True)


@every_dtype
@every_format
def test_any_codes_and_bounds_decode_alike(dtype, format):
    """Payloads that no compression made: all 256 codes, negative and infinite bounds."""
    codes = torch.arange(256).to(torch.uint8).repeat(6)
    tiny = torch.finfo(dtype).smallest_normal
    bounds = torch.tensor([1.0, -3.0, math.inf, -math.inf, math.nan, tiny], dtype=torch.float64).to(dtype)
    value = ops.float8_decompress(codes, bounds, FORMATS[format], 256)
    assert same_bits(value, reference.float8_decompress(codes, bounds, FORMATS[format], 256))
    assert value[:256].abs().max() == 1


@every_format
def test_any_number_of_threads(set_threads, format):
    x = normal(300_001)
    results = []
    for threads in (1, 2, 4):
        set_threads(threads)
        codes, bounds = ops.float8_compress(x, FORMATS[format], 96, True, SEED, STREAM)
        results.append((codes, bounds, ops.float8_decompress(codes, bounds, FORMATS[format], 96)))
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert same_bits(one, two)


def all_numbers(format):
    """Every finite number of the format, the midpoints between neighbours, and their neighbours in float32."""
    codes = torch.arange(256).to(torch.uint8)
    numbers = codes.view(FORMATS[format]).float()
    numbers = numbers[numbers.isfinite()].unique()
    middles = (numbers[1:] + numbers[:-1]) / 2
    x = torch.cat([numbers, middles, middles.nextafter(numbers[1:]), middles.nextafter(numbers[:-1]), -torch.zeros(1)])
    return x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))]


@every_format
def test_nearest_codes_are_torchs_own_numbers(format):
    """With the format's largest number as the bound the factor is 1, and the codes are those of torch's cast."""
    x = all_numbers(format)
    x = torch.nn.functional.pad(x, (0, -len(x) % 255)).view(-1, 255)
    x = torch.cat([x, torch.full((len(x), 1), -LARGEST[format])], dim=1)
    codes, bounds = actcore.compress(x, actcore.Float8(format, rounding="nearest")).payload
    assert torch.equal(bounds, torch.full((len(x),), LARGEST[format]))
    assert same_bits(codes.view_as(x), x.to(FORMATS[format]).view(torch.uint8))


@every_dtype
@every_format
def test_codes_are_numbers_scaled_by_the_bound(dtype, format):
    """As the docstring says they are to be read; 2**-22: two roundings to float32 on either side, of 2**-24 each."""
    x = normal(1024, torch.float64).to(dtype)
    c = actcore.compress(x, actcore.Float8(format))
    codes, bounds = c.payload
    read = codes.view(FORMATS[format]).double().view(4, 256) * (bounds.double() / LARGEST[format])[:, None]
    error = (read - c.decompress().double().view(4, 256)).abs()
    eps = torch.finfo(dtype).eps
    assert torch.all(error <= read.abs() * (eps / 2 + 2**-22) + torch.finfo(dtype).smallest_normal * eps)


@every_format
def test_every_number_of_the_format_is_exact(format):
    x = all_numbers(format).to(FORMATS[format]).float()
    x[0] = LARGEST[format]
    x = x[: len(x) // 32 * 32]
    for rounding in ("stochastic", "nearest"):
        codec = actcore.Float8(format, len(x), rounding)
        assert same_bits(round_trip(x, codec), x)


@every_dtype
@every_format
@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
def test_the_largest_magnitude_is_exact_and_none_comes_back_larger(dtype, format, rounding):
    for name, x in hard_ranges(dtype, 512).items():
        for sign in (1, -1):
            y = round_trip(sign * x, actcore.Float8(format, rounding=rounding))
            for before, after in zip((sign * x).view(2, 256), y.view(2, 256), strict=True):
                bound = before.abs().max()
                assert after.abs().max() == bound, name
                assert torch.equal(after[before == bound], before[before == bound]), name
                assert torch.equal(after[before == -bound], before[before == -bound]), name


@every_dtype
@every_format
def test_zeros_are_exact_and_signs_are_kept(dtype, format):
    for value in (0.0, -0.0):
        x = torch.full((600,), value, dtype=dtype)
        assert same_bits(round_trip(x, actcore.Float8(format)), x)
    x = normal(600, dtype) * torch.logspace(0, -60, 600, 2, dtype=torch.float64).to(dtype)
    assert torch.equal(round_trip(x, actcore.Float8(format)).signbit(), x.signbit())


@every_dtype
@every_format
@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
def test_a_group_that_is_not_finite_decompresses_to_nan_and_no_other_does(dtype, format, rounding):
    for name, x in not_finite(dtype).items():
        y = round_trip(x, actcore.Float8(format, rounding=rounding))
        group_is_finite = torch.cat([part.isfinite().all().expand(len(part)) for part in x.split(256)])
        assert torch.equal(y.isnan(), ~group_is_finite), name
        assert y[group_is_finite].isfinite().all(), name


@every_dtype
def test_size_is_the_formula_and_never_above_the_inputs(dtype):
    for numel in NUMELS:
        for group_size in GROUP_SIZES:
            codec, x = actcore.Float8("e4m3", group_size), normal(numel, dtype)
            c = actcore.compress(x, codec)
            formula = numel + -(-numel // group_size) * dtype.itemsize
            assert codec.stored_bytes(numel, dtype) == formula
            assert c.nbytes == min(formula, x.nbytes)
            assert c.codec == (codec if formula < x.nbytes else actcore.Raw())


@every_format
def test_a_flag_that_flushes_subnormals_changes_no_code_of_ordinary_values(format):
    """The formats' subnormals are ordinary float32 numbers on the way."""
    x = normal(1024) * torch.logspace(0, -24, 1024, 2)
    expected = round_trip(x, actcore.Float8(format, rounding="nearest"))
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        assert same_bits(round_trip(x, actcore.Float8(format, rounding="nearest")), expected)
    finally:
        torch.set_flush_denormal(False)
