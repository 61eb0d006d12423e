"""A width for each row: every bit of the reference, and each row as the plain codec stores it."""

import pytest
import torch

import actcore
from actcore import GroupAffineRows, reference
from actcore.ops import packed_bytes

from .samples import DTYPES, hard_ranges, name_of, normal, not_finite, same_bits

SEED, STREAM = 0x0123_4567_89AB_CDEF, -3
WIDTHS = (4, 1, 8, 3, 7, 2, 5, 6, 4)

ops = torch.ops.actcore
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
both_roundings = pytest.mark.parametrize("stochastic", [True, False], ids=["stochastic", "nearest"])


def bytes_of(widths, row_size):
    return sum(packed_bytes(row_size, width) for width in widths)


def assert_as_reference(x, widths, group_size, stochastic, nbytes=None, case=""):
    bits = torch.tensor(widths, dtype=torch.int64)
    row_size = x.numel() // max(len(widths), 1)
    nbytes = bytes_of(widths, row_size) if nbytes is None else nbytes
    options = (nbytes, group_size, stochastic, SEED, STREAM)
    got = ops.group_affine_rows_compress(x, bits, *options)
    expected = reference.group_affine_rows_compress(x, bits, *options)
    back = ops.group_affine_rows_decompress(got[0], got[1], bits, x.numel(), group_size)
    expected_back = reference.group_affine_rows_decompress(*expected[:2], bits, x.numel(), group_size)
    for one, other in zip((*got, *back), (*expected, *expected_back), strict=True):
        assert same_bits(one, other), case
    return got, back


@every_dtype
@both_roundings
@pytest.mark.parametrize("group_size", [32, 96, 256])
def test_every_row_length(dtype, stochastic, group_size):
    """Lengths that are no multiple of 16 begin inside a block of noise, or of 8, leave bits of a byte unused."""
    for row_size in (1, 7, 16, 33, 100, 255, 256, 300):
        x = normal(len(WIDTHS) * row_size, dtype)
        assert_as_reference(x, WIDTHS, group_size, stochastic, case=row_size)


@every_dtype
def test_hard_ranges_and_groups_that_are_not_finite(dtype):
    for name, x in (hard_ranges(dtype) | not_finite(dtype)).items():
        assert_as_reference(x, (2, 8, 1, 5), 32, stochastic=True, case=name)


@pytest.mark.parametrize("row_size", [256, 100])
def test_a_row_is_what_the_plain_codec_stores(row_size):
    """Row 0 has the plain noise from the start; nearest rounding has none, so every row compares."""
    x = normal(len(WIDTHS) * row_size).view(len(WIDTHS), row_size)
    codes, _ = actcore.compress(x, GroupAffineRows(WIDTHS, 64), seed=1).payload
    assert same_bits(
        codes[: packed_bytes(row_size, 4)], actcore.compress(x[0], actcore.GroupAffine(4, 64), seed=1).payload[0]
    )
    y = actcore.decompress(actcore.compress(x, GroupAffineRows(WIDTHS, 64, "nearest")))
    for row, width in enumerate(WIDTHS):
        codec = actcore.GroupAffine(width, 64, "nearest")
        assert same_bits(y[row], actcore.decompress(actcore.compress(x[row], codec))), row


def test_equal_widths_are_the_plain_codec():
    """Where rows are whole groups, one width for all gives the bytes of ``GroupAffine``, noise included."""
    x = normal(2048).view(4, 512)
    for bits in range(1, 9):
        of_rows = actcore.compress(x, GroupAffineRows((bits,) * 4), seed=5, stream=6).payload
        plain = actcore.compress(x, actcore.GroupAffine(bits), seed=5, stream=6).payload
        assert all(same_bits(one, other) for one, other in zip(of_rows, plain, strict=True))


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_any_number_of_threads(set_threads, threads):
    x = normal(9 * 20_001)
    set_threads(threads)
    codes, bounds, _ = ops.group_affine_rows_compress(
        x, torch.tensor(WIDTHS), bytes_of(WIDTHS, 20_001), 96, True, SEED, STREAM
    )
    for row, offset in ((0, 0), (8, bytes_of(WIDTHS[:8], 20_001))):
        own = x[row * 20_001 :][:20_001]
        expected = reference.group_affine_compress(own, WIDTHS[row], 96, True, SEED, STREAM, row * 20_001)
        assert same_bits(codes[offset:][: len(expected[0])], expected[0])
        assert same_bits(bounds.view(9, -1, 2)[row], expected[1])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64], ids=name_of)
def test_widths_of_any_integer_dtype(dtype):
    x = normal(900)
    options = (bytes_of(WIDTHS, 100), 32, True, 0, 0)
    expected = reference.group_affine_rows_compress(x, torch.tensor(WIDTHS), *options)
    got = ops.group_affine_rows_compress(x, torch.tensor(WIDTHS, dtype=dtype), *options)
    assert all(same_bits(one, other) for one, other in zip(got, expected, strict=True))


@pytest.mark.parametrize("strange", [0, 9, 200, -1, 2**32 + 4])
def test_a_width_out_of_range_is_flagged_and_its_row_is_nan(strange):
    """2**32 + 4 is 4 in 32 bits: a width must not wrap into the range."""
    widths = (4, strange, 3, 2)
    x = normal(1200)
    (_, bounds, misfit), (y, again) = assert_as_reference(x, widths, 64, True, bytes_of((4, 3, 2), 300))
    assert (misfit.item(), again.item()) == (1, 1)
    assert bounds.view(4, 5, 2)[1].isnan().all()
    assert torch.equal(y.view(4, 300).isnan().any(1), torch.tensor([False, True, False, False]))


@pytest.mark.parametrize("lacking", [1, 75, 76, 400, 10_000])
def test_rows_that_do_not_fit_are_flagged_and_nothing_is_written_behind(lacking):
    widths = (4, 8, 3, 2)
    x = normal(1200)
    nbytes = max(bytes_of(widths, 300) - lacking, 0)
    (codes, _, misfit), (y, _) = assert_as_reference(x, widths, 64, True, nbytes)
    assert (misfit.item(), codes.numel()) == (1, nbytes)
    stored = [bytes_of(widths[: row + 1], 300) <= nbytes for row in range(4)]
    assert torch.equal(~y.view(4, 300).isnan().any(1), torch.tensor(stored))


def test_spare_bytes_are_zero():
    (codes, _, misfit), _ = assert_as_reference(normal(1200), (4, 8, 3, 2), 64, True, 3000)
    assert misfit.item() == 0
    assert not codes[bytes_of((4, 8, 3, 2), 300) :].any()


def test_no_rows_and_empty_rows():
    assert_as_reference(torch.empty(0), (), 64, True, 0)
    (codes, bounds, misfit), _ = assert_as_reference(torch.empty(0), (4, 8), 64, True, 5)
    assert (codes.tolist(), bounds.shape, misfit.item()) == ([0] * 5, (0, 2), 0)


IMAGES = normal(4 * 8 * 6 * 10).view(4, 8, 6, 10)
LAYOUTS = {
    "contiguous": IMAGES,
    "channels last": IMAGES.contiguous(memory_format=torch.channels_last),
    "transposed": IMAGES.transpose(0, 1).contiguous().transpose(0, 1),
    "every second": normal(8 * 480).view(8, 480)[::2],
    "columns": normal(4 * 480).view(4, 480)[:, 3:400],
    "a vector": normal(4),
    "expanded over rows": normal(480).expand(4, 480),
    "expanded within rows": normal(4 * 480).view(4, 1, 480).expand(4, 7, 480),
    "windows": normal(600).unfold(0, 480, 40),
    "empty rows": torch.empty(4, 0),
}


@pytest.mark.parametrize("x", LAYOUTS.values(), ids=LAYOUTS)
def test_layouts(x):
    """Shape and strides come back, and every element near its own: rows have widths of their own to tell by."""
    bits = (8, 8, 8, 1)
    c = actcore.compress(x, GroupAffineRows(bits, 32, "nearest"), seed=1)
    y = actcore.decompress(c)
    assert y.shape == x.shape
    if not (x.dim() == 2 and x.stride() == (40, 1)):  # windows that overlap come back contiguous
        assert y.stride() == x.stride()
    for row, width in enumerate((8, 8, 8, 8 if x.stride(0) == 0 else 1)):
        if x.numel():
            span = x[row].max() - x[row].min()
            assert (y[row] - x[row]).abs().max() <= span / (2**width - 1) / 2 + 2**-22 * x[row].abs().max()
    own = x.contiguous() if x.stride(0) else x[:1].contiguous()
    widths = bits if x.stride(0) else (8,)
    if "expanded within" not in str(x.shape) and x.dim() != 3:
        assert c.nbytes == min(GroupAffineRows(widths, 32).stored_bytes(own.numel(), x.dtype), own.nbytes)


def test_expanded_within_rows_is_stored_once():
    x = LAYOUTS["expanded within rows"]
    c = actcore.compress(x, GroupAffineRows((4,) * 4, 32))
    assert c.nbytes == GroupAffineRows((4,) * 4, 32).stored_bytes(4 * 480, x.dtype)


@every_dtype
def test_the_bias_of_each_row_is_that_of_its_width(dtype):
    """The mean of many draws; the bound is derived in test_group_affine_statistics."""
    draws, x = 256, normal(4 * 256, dtype).view(4, 256)
    bits = (1, 2, 4, 8)
    total = torch.zeros(4, 256, dtype=torch.float64)
    for stream in range(draws):
        total += actcore.decompress(actcore.compress(x, GroupAffineRows(bits), seed=3, stream=stream)).double()
    for row, width in enumerate(bits):
        levels = 2**width - 1
        low, high = x[row].double().aminmax()
        step = (high - low) / levels
        output = torch.finfo(dtype).eps / 2 * 4  # no magnitude above 4 is in a binade above [2, 4)
        assert x[row].abs().max() < 4
        bias = 2**-9 + 6 * levels * 2.0**-24 + output / step
        assert ((total[row] / draws - x[row].double()) / step).abs().max() <= bias + 5 / (2 * draws**0.5)
