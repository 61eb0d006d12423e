"""Wrong arguments of the raw operators raise, and the text names the operator, the argument and the rule."""

import math
import re

import pytest
import torch

ops = torch.ops.actcore
F32, U8 = torch.zeros(1000), torch.zeros(1000, dtype=torch.uint8)
BOUNDS = torch.zeros(4, 2)
CODES = U8[:375]
BITS4 = torch.full((4,), 4)
DAMAGED = "the stored form is damaged or belongs to another tensor"
WRONG = [
    ("group_affine_compress", (F32, 0, 256, True, 0, 0), "bits must be from 1 to 8, got 0"),
    ("group_affine_compress", (F32, 9, 256, True, 0, 0), "bits must be from 1 to 8, got 9"),
    (
        "group_affine_compress",
        (F32, 4, 0, True, 0, 0),
        "group_size must be a positive multiple of 32, got 0",
    ),
    (
        "group_affine_compress",
        (F32, 4, -256, True, 0, 0),
        "group_size must be a positive multiple of 32, got -256",
    ),
    (
        "group_affine_compress",
        (F32, 4, 100, True, 0, 0),
        "group_size must be a positive multiple of 32, got 100",
    ),
    (
        "group_affine_compress",
        (F32.long(), 4, 256, True, 0, 0),
        "input must be float32, float64, float16 or bfloat16",
    ),
    (
        "group_affine_compress",
        (F32.view(25, 40).t(), 4, 256, True, 0, 0),
        "input must be contiguous; call .contiguous() first",
    ),
    ("group_affine_decompress", (CODES, BOUNDS, 1000, 0, 256), "bits must be from 1 to 8, got 0"),
    (
        "group_affine_decompress",
        (CODES, BOUNDS, 1000, 3, 31),
        "group_size must be a positive multiple of 32, got 31",
    ),
    ("group_affine_decompress", (CODES, BOUNDS, -1, 3, 256), "numel must not be negative, got -1"),
    (
        "group_affine_decompress",
        (CODES[:-1], BOUNDS, 1000, 3, 256),
        f"codes must hold 375 bytes, got 374; {DAMAGED}",
    ),
    (
        "group_affine_decompress",
        (CODES, BOUNDS[:-1], 1000, 3, 256),
        f"bounds must hold 4 pairs, got 6 values; {DAMAGED}",
    ),
    ("group_affine_decompress", (CODES.char(), BOUNDS, 1000, 3, 256), "codes must be uint8"),
    (
        "group_affine_decompress",
        (CODES, BOUNDS.int(), 1000, 3, 256),
        "bounds must be float32, float64, float16 or bfloat16",
    ),
    (
        "group_affine_decompress",
        (CODES, torch.zeros(2, 4).t(), 1000, 3, 256),
        "bounds must be contiguous; call .contiguous() first",
    ),
    (
        "group_affine_decompress",
        (U8[:750:2], BOUNDS, 1000, 3, 256),
        "codes must be contiguous; call .contiguous() first",
    ),
    (
        "group_affine_rows_compress",
        (F32, BITS4, 500, 31, True, 0, 0),
        "group_size must be a positive multiple of 32, got 31",
    ),
    ("group_affine_rows_compress", (U8, BITS4, 500, 256, True, 0, 0), "input must be float32, float64"),
    ("group_affine_rows_compress", (F32[::2], BITS4, 500, 256, True, 0, 0), "input must be contiguous"),
    ("group_affine_rows_compress", (F32, BITS4, -1, 256, True, 0, 0), "nbytes must not be negative, got -1"),
    (
        "group_affine_rows_compress",
        (F32, BITS4.short(), 500, 256, True, 0, 0),
        "bits must be uint8, int32 or int64",
    ),
    ("group_affine_rows_compress", (F32, BITS4[::2], 500, 256, True, 0, 0), "bits must be contiguous"),
    (
        "group_affine_rows_compress",
        (F32, BITS4[:3], 500, 256, True, 0, 0),
        "bits must hold one width for each row, got 3 widths for 1000 elements",
    ),
    (
        "group_affine_rows_compress",
        (F32, BITS4[:0], 500, 256, True, 0, 0),
        "bits must hold one width for each row, got 0 widths for 1000 elements",
    ),
    (
        "group_affine_rows_decompress",
        (U8[:500], BOUNDS[:3], BITS4, 1000, 256),
        f"bounds must hold 4 pairs, got 6 values; {DAMAGED}",
    ),
    ("group_affine_rows_decompress", (U8[:500], BOUNDS, BITS4, -4, 256), "numel must not be negative, got -4"),
    (
        "group_affine_rows_decompress",
        (U8[:500], BOUNDS, BITS4, 1001, 256),
        "bits must hold one width for each row, got 4 widths for 1001 elements",
    ),
    ("group_affine_rows_decompress", (F32, BOUNDS, BITS4, 1000, 256), "codes must be uint8"),
    ("float8_compress", (F32, torch.float16, 256, True, 0, 0), "format must be float8_e4m3fn or float8_e5m2"),
    (
        "float8_compress",
        (F32, torch.float8_e5m2, 33, True, 0, 0),
        "group_size must be a positive multiple of 32, got 33",
    ),
    ("float8_compress", (U8, torch.float8_e5m2, 256, True, 0, 0), "input must be float32, float64"),
    ("float8_compress", (F32[::2], torch.float8_e5m2, 256, True, 0, 0), "input must be contiguous"),
    (
        "float8_decompress",
        (U8, BOUNDS[0], torch.float8_e4m3fn, 256),
        f"bounds must hold 4 values, got 2; {DAMAGED}",
    ),
    ("float8_decompress", (F32, F32[:4], torch.float8_e4m3fn, 256), "codes must be uint8"),
    ("float8_decompress", (U8, F32[:4], torch.float8_e4m3fnuz, 256), "format must be float8_e4m3fn or float8_e5m2"),
    ("float8_decompress", (U8, U8[:4], torch.float8_e4m3fn, 256), "bounds must be float32, float64"),
    ("narrow_compress", (F32, 0, 1), "input must be bool, uint8, int8, int16, int32 or int64"),
    ("narrow_compress", (U8[::2], 0, 1), "input must be contiguous"),
    (
        "narrow_compress",
        (U8, 5, 4),
        "low and high must be in order and from 0 to 255 for this dtype, got 5 and 4",
    ),
    (
        "narrow_compress",
        (U8, -1, 4),
        "low and high must be in order and from 0 to 255 for this dtype, got -1 and 4",
    ),
    (
        "narrow_decompress",
        (U8[:500], 1000, torch.bool, 0, 2),
        "low and high must be in order and from 0 to 1 for this dtype, got 0 and 2",
    ),
    ("narrow_decompress", (U8[:499], 1000, torch.int8, -8, 7), f"packed must hold 500 bytes, got 499; {DAMAGED}"),
    ("narrow_decompress", (U8[:500], -1, torch.int8, -8, 7), "numel must not be negative, got -1"),
    ("narrow_decompress", (U8[:500], 2**60, torch.int8, -8, 7), "numel must be below 2^60, got 1152921504606846976"),
    ("narrow_decompress", (U8, 1000, torch.float32, 0, 7), "dtype must be bool, uint8, int8, int16, int32 or int64"),
    ("pack_bits", (U8, 9), "bits must be from 1 to 8, got 9"),
    ("pack_bits", (F32, 4), "codes must be uint8"),
    ("pack_bits", (U8[::2], 4), "codes must be contiguous; call .contiguous() first"),
    ("unpack_bits", (CODES, -1, 1000), "bits must be from 1 to 8, got -1"),
    ("unpack_bits", (CODES, 3, 992), f"packed must hold 372 bytes, got 375; {DAMAGED}"),
    ("unpack_bits", (CODES, 3, 1001), f"packed must hold 376 bytes, got 375; {DAMAGED}"),
    ("unpack_bits", (CODES, 3, -8), "numel must not be negative, got -8"),
    ("unpack_bits", (F32, 3, 1000), "packed must be uint8"),
    (
        "bit_mask_compress",
        (F32.to(torch.complex128), 0.0, 1.0),
        "input must be bool, an integer or a floating-point type of at most 8 bytes",
    ),
    ("bit_mask_compress", (F32[::2], 0.0, 1.0), "input must be contiguous; call .contiguous() first"),
    (
        "bit_mask_decompress",
        (U8[:125], 1000, torch.complex64, 0.0, 1.0),
        "dtype must be bool, an integer or a floating-point type of at most 8 bytes",
    ),
    (
        "bit_mask_decompress",
        (U8[:124], 1000, torch.float32, 0.0, 1.0),
        f"mask must hold 125 bytes, got 124; {DAMAGED}",
    ),
    ("bit_mask_decompress", (U8[:125], -1, torch.float32, 0.0, 1.0), "numel must not be negative, got -1"),
    (
        "group_affine_clamped_compress",
        (F32, 4, 256, True, 0, 0, 2.0, 1.0),
        "least and most must be finite, and least not above most, got 2 and 1",
    ),
    (
        "group_affine_clamped_compress",
        (F32, 4, 256, True, 0, 0, -math.inf, 1.0),
        "least and most must be finite, and least not above most, got -inf and 1",
    ),
    (
        "group_affine_standardized_compress",
        (F32, 4, 256, True, 0, 0, 10, 99, 10),
        "1000 elements must be whole runs or rows of 10 statistics, by inner=99 and channels=10",
    ),
    (
        "group_affine_standardized_compress",
        (F32, 4, 256, True, 0, 0, 7, 10, 0),
        "1000 elements must be whole runs or rows of 7 statistics, by inner=10 and channels=0",
    ),
    (
        "group_affine_standardized_compress",
        (F32, 4, 8192, True, 0, 0, 10, 100, 0),
        "group_size must be at most 4096, got 8192",
    ),
    (
        "group_affine_standardized_compress",
        (F32, 4, 256, True, 0, 0, 0, 100, -1),
        "channels must not be negative, inner and statistics positive, got -1, 100 and 0",
    ),
    (
        "group_affine_standardized_decompress",
        (U8[:500], F32[:8], F32[:20].view(2, 10).double(), 1000, 100, 0, 4, 256),
        "statistics must be float32 for elements of this dtype",
    ),
    (
        "group_affine_standardized_decompress",
        (U8[:500], F32[:8], F32[:20], 1000, 100, 0, 4, 256),
        "statistics must be means and deviations: (2, count)",
    ),
    (
        "group_affine_standardized_activation",
        (U8[:500], F32[:8], F32[:10], F32[:10], None, 1000, 100, 0, 4, 256, "tanh"),
        "function must be one of none, relu, silu, gelu, gelu_tanh; got 'tanh'",
    ),
    (
        "group_affine_standardized_activation",
        (U8[:500], F32[:8], F32[:10], F32[:9], None, 1000, 100, 0, 4, 256, "none"),
        "scales must be as many as shifts, 9, got 10",
    ),
    (
        "group_affine_standardized_activation",
        (U8[:500], F32[:8], F32[:10].double(), F32[:10], None, 1000, 100, 0, 4, 256, "none"),
        "scales must be 1-D and float32 for elements of this dtype",
    ),
    (
        "group_affine_standardized_activation",
        (U8[:500], F32[:8], F32[:10], F32[:10], F32[:999], 1000, 100, 0, 4, 256, "none"),
        "added must be 1000 elements in the dtype of bounds, got 999",
    ),
    ("has_wide_group", (U8, 256), "input must be float32, float64, float16 or bfloat16"),
    ("has_wide_group", (F32[::2], 256), "input must be contiguous; call .contiguous() first"),
    ("has_wide_group", (F32, 100), "group_size must be a positive multiple of 32, got 100"),
    ("positive_mask", (U8,), "input must be float32, float64, float16 or bfloat16"),
    ("positive_mask", (F32[::2],), "input must be contiguous; call .contiguous() first"),
]


@pytest.mark.parametrize(
    ("place", "given", "text"),
    [
        (6, F32[:10].double(), "means must be 1-D and float32 for elements of this dtype"),
        (7, F32[:9], "factors must be as many as means, 10, got 9"),
        (8, 99, "1000 elements must be whole runs or rows of 10 statistics, by inner=99 and channels=0"),
        (10, U8[:499], "codes must hold 500 bytes, got 499"),
        (11, F32[:6], "bounds must hold 4 pairs in input's dtype, got 6 values"),
        (12, F32[:10], "statistics must hold 20 values in the dtype of means, got 10"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_statistics(place, given, text):
    arguments = [F32, 4, 256, True, 0, 0, F32[:10], F32[:10], 100, 0, U8[:500], F32[:8], F32[:20]]
    arguments[place] = given
    with pytest.raises(RuntimeError, match=re.escape(f"actcore::group_affine_standardized_compress: {text}")):
        ops.group_affine_standardized_compress.given(*arguments)


@pytest.mark.parametrize(("operator", "arguments", "text"), WRONG, ids=range(len(WRONG)))
def test_wrong_arguments(operator, arguments, text):
    with pytest.raises(RuntimeError, match=re.escape(f"actcore::{operator}: {text}")):
        getattr(ops, operator)(*arguments)
