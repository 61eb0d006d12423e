"""CUDA gives the bits that the CPU gives."""

import subprocess
import sys

import pytest
import torch

import actcore
from actcore import info

from .samples import (
    BITS,
    DTYPES,
    FORMATS,
    GROUP_SIZES,
    INTEGERS,
    NUMELS,
    assert_same_bytes,
    hard_ranges,
    integers,
    name_of,
    normal,
    not_finite,
)

if actcore.build_info()["cuda_missing"]:
    pytest.skip(f"no CUDA operators: {actcore.build_info()['cuda_missing']}", allow_module_level=True)
if not torch.cuda.is_available():
    pytest.skip("torch finds no GPU", allow_module_level=True)

pytestmark = pytest.mark.cuda

ops = torch.ops.actcore
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
every_width = pytest.mark.parametrize("bits", BITS)
both_roundings = pytest.mark.parametrize("stochastic", [True, False], ids=["stochastic", "nearest"])


def assert_as_on_cpu(x, bits, group_size, stochastic, on_gpu=None):
    case = f"bits={bits} group_size={group_size} numel={x.numel()}"
    options = (bits, group_size, stochastic, 0x0123_4567_89AB_CDEF, -3)
    codes, bounds = ops.group_affine_compress(x, *options)
    got = ops.group_affine_compress(x.cuda() if on_gpu is None else on_gpu, *options)
    assert_same_bytes(got[0], codes, case)
    assert_same_bytes(got[1], bounds, case)
    value = ops.group_affine_decompress(codes, bounds, x.numel(), bits, group_size)
    assert_same_bytes(ops.group_affine_decompress(*got, x.numel(), bits, group_size), value, case)


@every_dtype
@every_width
@both_roundings
def test_group_affine(dtype, bits, stochastic):
    """2048 and 4096 take the kernel in which a block shares a group; 20,000 elements take several blocks."""
    for group_size in (*GROUP_SIZES, 160, 2048, 4096, 32 * 1025):
        for numel in (*NUMELS, 20_000):
            assert_as_on_cpu(normal(numel, dtype), bits, group_size, stochastic)


@every_dtype
@both_roundings
def test_hard_ranges_and_groups_that_are_not_finite(dtype, stochastic):
    for x in (hard_ranges(dtype) | not_finite(dtype)).values():
        for bits in (1, 2, 4, 8):
            for group_size in (96, 256):
                assert_as_on_cpu(x, bits, group_size, stochastic)


@every_dtype
def test_misaligned_input(dtype):
    """A view may start at any element, where a wide load would fault."""
    memory = normal(4000, dtype)
    on_gpu = memory.cuda()
    for start in (1, 2, 3, 5, 7, 9):
        part = slice(start, start + 3000)
        for group_size in (96, 256):
            assert_as_on_cpu(memory[part], 4, group_size, stochastic=True, on_gpu=on_gpu[part])
        assert_same_bytes(ops.positive_mask(on_gpu[part]), ops.positive_mask(memory[part]))


@every_width
def test_misaligned_codes(bits):
    codes = torch.arange(4000).remainder(2**bits).to(torch.uint8)
    packed, _ = ops.pack_bits(codes, bits)
    padded = torch.cat([packed, packed]).cuda()
    for start in (1, 2, 3):
        padded[start : start + len(packed)] = packed.cuda()
        assert_same_bytes(ops.unpack_bits(padded[start : start + len(packed)], bits, 4000), codes)
        assert_same_bytes(ops.pack_bits(codes.cuda()[start:], bits)[0], ops.pack_bits(codes[start:], bits)[0])


@every_width
@pytest.mark.parametrize("numel", [*NUMELS, 100_003])
def test_packing(bits, numel):
    codes = torch.arange(numel).remainder(2**bits).to(torch.uint8)
    packed = actcore.pack_bits(codes.cuda(), bits)
    assert_same_bytes(packed, actcore.pack_bits(codes, bits))
    assert_same_bytes(actcore.unpack_bits(packed, bits, numel), codes)


@pytest.mark.parametrize("dtype", [torch.bool, *INTEGERS, *DTYPES], ids=name_of)
def test_masks(dtype):
    for numel in (*NUMELS, 100_003):
        mask = (normal(numel) > 0).to(dtype)
        c = actcore.compress(mask.cuda(), actcore.BitMask())
        assert_same_bytes(c.payload[0], actcore.compress(mask, actcore.BitMask()).payload[0])
        assert_same_bytes(c.decompress(), mask)
    if dtype in DTYPES:
        for x in (hard_ranges(dtype) | not_finite(dtype)).values():
            assert_same_bytes(ops.positive_mask(x.cuda()), ops.positive_mask(x))


def assert_float8_as_on_cpu(x, format, group_size, stochastic, on_gpu=None):
    case = f"{format} group_size={group_size} numel={x.numel()}"
    options = (FORMATS[format], group_size, stochastic, 0x0123_4567_89AB_CDEF, -3)
    expected = ops.float8_compress(x, *options)
    got = ops.float8_compress(x.cuda() if on_gpu is None else on_gpu, *options)
    for one, other in zip(got, expected, strict=True):
        assert_same_bytes(one, other, case)
    value = ops.float8_decompress(*expected, FORMATS[format], group_size)
    assert_same_bytes(ops.float8_decompress(*got, FORMATS[format], group_size), value, case)


@every_dtype
@pytest.mark.parametrize("format", FORMATS)
@both_roundings
def test_float8(dtype, format, stochastic):
    for group_size in (*GROUP_SIZES, 160, 2048, 32 * 1025):
        for numel in (*NUMELS, 20_000):
            assert_float8_as_on_cpu(normal(numel, dtype), format, group_size, stochastic)
    for x in (hard_ranges(dtype) | not_finite(dtype)).values():
        for group_size in (96, 256):
            assert_float8_as_on_cpu(x, format, group_size, stochastic)
    memory = normal(4000, dtype)
    on_gpu = memory.cuda()
    for start in (1, 2, 3, 5, 7, 9):
        part = slice(start, start + 3000)
        assert_float8_as_on_cpu(memory[part], format, 256, stochastic, on_gpu[part])


@pytest.mark.parametrize("dtype", [torch.bool, *INTEGERS], ids=name_of)
def test_narrow(dtype):
    least, most = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    for bits in range((most - least).bit_length() + 1):
        low, high = (least, least + 2**bits - 1) if bits % 2 else (most - 2**bits + 1, most)
        for numel in (1, 33, 1023, 1024, 5001):
            x = integers(numel, low, high, dtype)
            packed, misfit = ops.narrow_compress(x.cuda(), low, high)
            assert misfit.item() == 0
            assert_same_bytes(packed, ops.narrow_compress(x, low, high)[0], (low, high, numel))
            assert_same_bytes(ops.narrow_decompress(packed, numel, dtype, low, high), x, (low, high, numel))
            if low > least:
                x[numel // 2] = low - 1
                assert ops.narrow_compress(x.cuda(), low, high)[1].item() == 1


@every_dtype
@pytest.mark.parametrize("group_size", [32, 96, 256, 2048])
def test_rows(dtype, group_size):
    widths = torch.tensor([4, 1, 8, 3, 7, 2, 5, 6, 4])
    for row_size in (1, 7, 33, 100, 256, 1024, 1025, 5000):
        x = normal(9 * row_size, dtype)
        nbytes = sum((row_size * width + 7) // 8 for width in widths.tolist())
        for strange, size in ((4, nbytes), (0, nbytes), (2**32 + 4, nbytes + 100), (4, nbytes // 2), (4, 0)):
            widths[3] = strange
            case = (row_size, strange, size)
            expected = ops.group_affine_rows_compress(x, widths, size, group_size, True, 5, -6)
            got = ops.group_affine_rows_compress(x.cuda(), widths.cuda(), size, group_size, True, 5, -6)
            back = ops.group_affine_rows_decompress(*expected[:2], widths, x.numel(), group_size)
            again = ops.group_affine_rows_decompress(*got[:2], widths.cuda(), x.numel(), group_size)
            for one, other in zip((*got, *again), (*expected, *back), strict=True):
                assert_same_bytes(one, other, case)


def test_five_thousand_rows_are_summed_up_in_chunks():
    """More rows than the 1024 threads that add up their sizes."""
    widths = torch.arange(5000) % 8 + 1
    x = normal(5000 * 40)
    options = (sum((40 * width + 7) // 8 for width in widths.tolist()), 32, True, 1, 2)
    got = ops.group_affine_rows_compress(x.cuda(), widths.cuda(), *options)
    for one, other in zip(got, ops.group_affine_rows_compress(x, widths, *options), strict=True):
        assert_same_bytes(one, other)


def test_the_built_in_check_passes():
    assert all(agrees for _, agrees in info.check_operators(torch.device("cuda")))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=name_of)
def test_layout_device_and_moving(memory_format):
    x = normal(4 * 8 * 6 * 10).view(4, 8, 6, 10).contiguous(memory_format=memory_format)
    on_cpu = actcore.compress(x, actcore.GroupAffine(4), seed=1)
    on_gpu = actcore.compress(x.cuda(), actcore.GroupAffine(4), seed=1)
    assert on_gpu.device.type == "cuda"
    assert on_gpu.decompress().stride() == x.stride()
    for c in (on_gpu, on_cpu.to("cuda")):
        assert_same_bytes(c.decompress(), on_cpu.decompress())
    assert torch.equal(on_gpu.to("cpu").decompress(), on_cpu.decompress())


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_opcheck(dtype):
    x = normal(1000, dtype).cuda()
    torch.library.opcheck(ops.group_affine_compress.default, (x, 4, 256, True, 1, 2))
    codes, bounds = ops.group_affine_compress(x, 4, 256, True, 1, 2)
    torch.library.opcheck(ops.group_affine_decompress.default, (codes, bounds, 1000, 4, 256))
    torch.library.opcheck(ops.positive_mask.default, (x,))
    torch.library.opcheck(ops.float8_compress.default, (x, torch.float8_e4m3fn, 256, True, 1, 2))
    widths = torch.tensor([1, 8]).cuda()
    torch.library.opcheck(ops.group_affine_rows_compress.default, (x, widths, 563, 256, True, 1, 2))
    torch.library.opcheck(ops.narrow_compress.default, (torch.arange(1000).cuda(), 0, 1000))


@pytest.mark.parametrize(
    "call",
    [
        "actcore.compress(torch.full((99,), 2.0).cuda(), actcore.BitMask())",
        "actcore.pack_bits(torch.full((99,), 8, dtype=torch.uint8).cuda(), 3)",
        "actcore.compress(torch.full((99,), 10).cuda(), actcore.Narrow(0, 9))",
    ],
    ids=["bit_mask", "pack_bits", "narrow"],
)
def test_a_value_that_does_not_fit_fails_at_the_next_synchronisation(call):
    """In a process of its own: an assertion on the device leaves the process's GPU unusable."""
    script = f"import torch, actcore; {call}; print('no wait', flush=True); torch.cuda.synchronize()"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300)
    assert result.stdout.startswith("no wait\n"), result.stderr
    assert result.returncode != 0
    assert "device-side assert triggered" in result.stderr
