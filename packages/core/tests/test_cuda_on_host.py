"""The sources of the CUDA kernels, compiled for the host, give the bytes of the CPU operators.

What a GPU alone can show stays for ``test_cuda.py``: its rounding and its memory model. What its kernels compute, where
they read and write, and for whom their threads wait is the same here.
"""

import math

import pytest
import torch

import actcore  # noqa: F401 - its operators

from .emulation import ELEMENT_TYPES, Written, at_offset, same_bytes
from .samples import (
    BITS,
    DTYPES,
    FORMATS,
    GROUP_SIZES,
    INTEGERS,
    NUMELS,
    hard_ranges,
    integers,
    name_of,
    normal,
    not_finite,
)

ops = torch.ops.actcore
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name_of)

SEED, STREAM = 0x0123_4567_89AB_CDEF, -3

# Whole groups to a tile; several groups to a tile that they do not fill; a block for a group, of one warp and of more.
SIZES = (*GROUP_SIZES, 160, 192, 224, 352, 544, 1056, 2048, 4096)
LONG = 32 * 1025


def packed(numel, bits):
    return (numel * bits + 7) // 8


def groups_of(numel, group_size):
    return -(-numel // group_size)


def check_group_affine(kernels, x, bits, group_size, stochastic, skip=0):
    case = f"{x.dtype} bits={bits} group_size={group_size} numel={x.numel()} stochastic={stochastic} skip={skip}"
    codes, bounds = ops.group_affine_compress(x, bits, group_size, stochastic, SEED, STREAM)
    got_codes = Written(codes.numel(), torch.uint8, skip=skip)
    got_bounds = Written(bounds.numel(), x.dtype)
    key = kernels.struct("NoiseKey")(SEED, STREAM % 2**64)
    given = at_offset(x, skip * x.element_size())
    what = (given.data_ptr(), ELEMENT_TYPES[x.dtype], x.numel(), group_size, bits)
    to = (got_codes.data_ptr(), got_bounds.data_ptr())
    compress = kernels.struct("GroupAffineCompress")(*what, stochastic, key, 0, *to)
    kernels.run("group_affine_compress", compress)
    same_bytes(got_codes.tensor(), codes, case)
    same_bytes(got_bounds.tensor(), bounds.view(-1), case)

    value = ops.group_affine_decompress(codes, bounds, x.numel(), bits, group_size)
    got = Written(x.numel(), x.dtype, skip=skip * x.element_size())
    stored = at_offset(codes, skip)
    what = (stored.data_ptr(), bounds.data_ptr(), ELEMENT_TYPES[x.dtype], x.numel(), group_size, bits)
    kernels.run("group_affine_decompress", kernels.struct("GroupAffineDecompress")(*what, got.data_ptr()))
    same_bytes(got.tensor(), value, case)


def check_float8(kernels, x, format, group_size, stochastic, skip=0):
    case = f"{x.dtype} {format} group_size={group_size} numel={x.numel()} stochastic={stochastic} skip={skip}"
    codes, bounds = ops.float8_compress(x, format, group_size, stochastic, SEED, STREAM)
    got_codes = Written(codes.numel(), torch.uint8, skip=skip)
    got_bounds = Written(bounds.numel(), x.dtype)
    key = kernels.struct("NoiseKey")(SEED, STREAM % 2**64)
    given = at_offset(x, skip * x.element_size())
    number = list(FORMATS.values()).index(format)
    what = (given.data_ptr(), ELEMENT_TYPES[x.dtype], x.numel(), group_size, number)
    to = (got_codes.data_ptr(), got_bounds.data_ptr())
    kernels.run("float8_compress", kernels.struct("Float8Compress")(*what, stochastic, key, *to))
    same_bytes(got_codes.tensor(), codes, case)
    same_bytes(got_bounds.tensor(), bounds, case)

    value = ops.float8_decompress(codes, bounds, format, group_size)
    got = Written(x.numel(), x.dtype, skip=skip * x.element_size())
    stored = at_offset(codes, skip)
    what = (stored.data_ptr(), bounds.data_ptr(), ELEMENT_TYPES[x.dtype], x.numel(), group_size, number)
    kernels.run("float8_decompress", kernels.struct("Float8Decompress")(*what, got.data_ptr()))
    same_bytes(got.tensor(), value, case)


def check_rows(kernels, x, widths, nbytes, group_size, stochastic):
    case = f"{x.dtype} rows={widths.tolist()} group_size={group_size} numel={x.numel()} nbytes={nbytes}"
    codes, bounds, misfit = ops.group_affine_rows_compress(x, widths, nbytes, group_size, stochastic, SEED, STREAM)
    got_codes, got_bounds = Written(nbytes, torch.uint8), Written(bounds.numel(), x.dtype)
    offsets, flag = Written(widths.numel() + 1, torch.int64), torch.zeros(1, dtype=torch.int32)
    where = (widths.data_ptr(), widths.element_size(), widths.numel(), x.numel() // widths.numel(), nbytes)
    rows = kernels.struct("RowWidths")(*where, offsets.data_ptr())
    key = kernels.struct("NoiseKey")(SEED, STREAM % 2**64)
    what = (x.data_ptr(), ELEMENT_TYPES[x.dtype], x.numel(), group_size, 0, stochastic, key, 0)
    to = (got_codes.data_ptr(), got_bounds.data_ptr())
    kernels.run("group_affine_rows_compress", kernels.struct("GroupAffineCompress")(*what, *to), rows, flag)
    same_bytes(got_codes.tensor(), codes, case)
    same_bytes(got_bounds.tensor(), bounds.view(-1), case)
    assert flag.item() == misfit.item(), case

    value, misfit = ops.group_affine_rows_decompress(codes, bounds, widths, x.numel(), group_size)
    got, flag = Written(x.numel(), x.dtype), torch.zeros(1, dtype=torch.int32)
    what = (codes.data_ptr(), bounds.data_ptr(), ELEMENT_TYPES[x.dtype], x.numel(), group_size, 0, got.data_ptr())
    kernels.run("group_affine_rows_decompress", kernels.struct("GroupAffineDecompress")(*what), rows, flag)
    same_bytes(got.tensor(), value, case)
    offsets.tensor()
    assert flag.item() == misfit.item(), case


@every_dtype
def test_group_affine_of_every_width(kernels, dtype):
    for bits in BITS:
        for group_size, numel in ((256, 2049), (96, 1000), (2048, 4100)):
            for stochastic in (True, False):
                check_group_affine(kernels, normal(numel, dtype), bits, group_size, stochastic)


@every_dtype
def test_group_affine_of_every_group_size(kernels, dtype):
    for group_size in SIZES:
        for numel in (*NUMELS, 5000):
            check_group_affine(kernels, normal(numel, dtype), 4, group_size, True)
    check_group_affine(kernels, normal(LONG + 100, dtype), 3, LONG, True)


@every_dtype
def test_group_affine_of_hard_ranges_and_groups_that_are_not_finite(kernels, dtype):
    for x in (hard_ranges(dtype) | not_finite(dtype)).values():
        for bits, group_size in ((1, 96), (4, 256), (8, 96), (8, 1056)):
            for stochastic in (True, False):
                check_group_affine(kernels, x, bits, group_size, stochastic)


@every_dtype
def test_group_affine_of_elements_that_are_not_finite_among_others(kernels, dtype):
    """In a tile beside whole groups, and in groups of several tiles and warps; a group that has no other elements, and
    one whose others are equal."""
    x = normal(5000, dtype)
    x[128:160] = 2.0
    for place in (5, 130, 300, 1500, 3000, 3300, 4999, slice(64, 96)):
        x[place] = math.nan if place != 300 else -math.inf
    for bits in BITS:
        for group_size in (32, 96, 256, 2048):
            check_group_affine(kernels, x, bits, group_size, stochastic=bits % 3 > 0)
    for group_size in (96, 2048):
        check_rows(kernels, x[:4998], torch.tensor([2, 5]), packed(2499, 2) + packed(2499, 5), group_size, True)


@every_dtype
def test_group_affine_of_misaligned_memory(kernels, dtype):
    """A view may start at any element, where a wide load would fault; what is stored may lie at any byte."""
    for skip in (1, 2, 3, 4, 5, 8):
        for bits in (3, 4, 8):
            for group_size in (96, 256, 2048):
                check_group_affine(kernels, normal(3000, dtype), bits, group_size, True, skip)


@every_dtype
@pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
def test_float8(kernels, dtype, format):
    for group_size in SIZES:
        for numel in (1, 33, 1000, 5000):
            check_float8(kernels, normal(numel, dtype), format, group_size, True)
    for x in (hard_ranges(dtype) | not_finite(dtype)).values():
        for group_size in (96, 256):
            for stochastic in (True, False):
                check_float8(kernels, x, format, group_size, stochastic)
    for skip in (1, 2, 4, 5):
        check_float8(kernels, normal(3000, dtype), format, 256, True, skip)


@every_dtype
def test_rows(kernels, dtype):
    """Rows of every width, one that is none, and one that ends beyond the bytes there are."""
    for integer in (torch.uint8, torch.int32, torch.int64):
        widths = torch.tensor([3, 1, 8, 5, 2, 7, 4, 6, 8], dtype=integer)
        for group_size in (32, 96, 224, 256, 1056, 2048):
            for row_size in (33, 333, 2100):
                whole = sum(packed(row_size, int(width)) for width in widths)
                x = normal(9 * row_size, dtype)
                check_rows(kernels, x, widths, whole, group_size, True)
        widths[4] = 0
        for group_size in (96, 256, 2048):
            check_rows(kernels, normal(9 * 333, dtype), widths, 2000, group_size, True)
            check_rows(kernels, normal(9 * 333, dtype), widths, 1000, group_size, False)


def every_finite(dtype):
    """All finite elements of a type of 16 bits, first beside those that are near, then beside those that are far."""
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
    finite = every[every.isfinite()]
    return torch.cat([finite, finite.view(-1, 32).T.reshape(-1)])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=name_of)
def test_every_element_of_16_bits(kernels, dtype):
    for bits, group_size in ((2, 32), (4, 256), (8, 96)):
        check_group_affine(kernels, every_finite(dtype), bits, group_size, True)
    check_float8(kernels, every_finite(dtype), torch.float8_e4m3fn, 64, True)


@every_dtype
def test_stored_forms_that_no_compress_made(kernels, dtype):
    """Any finite bounds, the upper one below the lower one too, as a file may have them. No negative zeros: their sign
    is not promised."""
    info = torch.finfo(dtype)
    some = [0.0, 1.0, -1.0, 3.0, info.max, info.min, info.tiny, -info.tiny, info.tiny * info.eps, 2.0**-24]
    some = torch.cat(
        [torch.tensor(some, dtype=torch.float64), normal(5, torch.float64), normal(5, torch.float64) * info.tiny]
    )
    some = some.to(dtype)
    bounds = torch.cartesian_prod(some, some).contiguous()
    groups = len(bounds)
    for bits in BITS:
        numel = 96 * groups
        codes = torch.randint(0, 256, (packed(numel, bits),), generator=torch.Generator().manual_seed(bits)).to(
            torch.uint8
        )
        value = ops.group_affine_decompress(codes, bounds, numel, bits, 96)
        got = Written(numel, dtype)
        what = (codes.data_ptr(), bounds.data_ptr(), ELEMENT_TYPES[dtype], numel, 96, bits, got.data_ptr())
        kernels.run("group_affine_decompress", kernels.struct("GroupAffineDecompress")(*what))
        ordinary = ~value.isnan()  # infinity less infinity, of which only the CPU's sign and payload are known
        same_bytes(got.tensor()[ordinary], value[ordinary], f"{dtype} bits={bits}")
        assert torch.equal(got.tensor().isnan(), ~ordinary)


@pytest.mark.parametrize("bits", BITS)
def test_bits(kernels, bits):
    for numel in (1, 31, 1000, 1024, 4096, 5000):
        for skip in (0, 1, 4):
            codes = integers(numel, 0, 2**bits - 1, torch.uint8)
            expected, _ = ops.pack_bits(codes, bits)
            got, flag = Written(expected.numel(), torch.uint8, skip=skip), torch.zeros(1, dtype=torch.int32)
            kernels.run("pack_bits", at_offset(codes, skip), numel, bits, got, flag)
            same_bytes(got.tensor(), expected, (bits, numel, skip))
            assert flag.item() == 0
            back = Written(numel, torch.uint8, skip=skip)
            kernels.run("unpack_bits", at_offset(expected, skip), numel, bits, back)
            same_bytes(back.tensor(), codes, (bits, numel, skip))


@every_dtype
def test_masks(kernels, dtype):
    for numel in (1, 1000, 1024, 5000):
        for skip in (0, 1):
            x = normal(numel, dtype)
            given, kind = at_offset(x, skip * x.element_size()), ELEMENT_TYPES[dtype]
            mask = Written(packed(numel, 1), torch.uint8, skip=skip)
            kernels.run("positive_mask", kernels.struct("PositiveMask")(given.data_ptr(), kind, numel, mask.data_ptr()))
            same_bytes(mask.tensor(), ops.positive_mask(x), (numel, skip))
            output, mask = Written(numel, dtype), Written(packed(numel, 1), torch.uint8)
            what = (given.data_ptr(), kind, numel, output.data_ptr(), mask.data_ptr())
            kernels.run("relu_mask", kernels.struct("ReluMask")(*what))
            same_bytes(output.tensor(), x.relu(), (numel, skip))
            same_bytes(mask.tensor(), ops.relu_mask(x)[1], (numel, skip))


@pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)
def test_narrow(kernels, dtype):
    for low, high in ((0, 7), (9, 100), (torch.iinfo(dtype).min, torch.iinfo(dtype).max)):
        bits = (high - low).bit_length()
        for numel in (1, 1000, 1024, 5000):
            x = integers(numel, low, high, dtype)
            expected, _ = ops.narrow_compress(x, low, high)
            got, flag = Written(expected.numel(), torch.uint8), torch.zeros(1, dtype=torch.int32)
            range_ = (low % 2**64, high - low, bits)
            what = (x.data_ptr(), x.element_size(), numel, *range_, got.data_ptr())
            kernels.run("narrow_compress", kernels.struct("NarrowCompress")(*what), flag)
            same_bytes(got.tensor(), expected, (numel, low, high))
            back = Written(numel, dtype)
            what = (expected.data_ptr(), x.element_size(), numel, *range_, back.data_ptr())
            kernels.run("narrow_decompress", kernels.struct("NarrowDecompress")(*what))
            same_bytes(back.tensor(), x, (numel, low, high))
