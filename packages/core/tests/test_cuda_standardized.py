"""CUDA clamps and standardises as the CPU does: codes, bounds and values bit for bit, statistics up to rounding."""

import pytest
import torch

import actcore
from actcore import reference

from .samples import BITS, DTYPES, NUMELS, assert_same_bytes, hard_ranges, name_of, normal, not_finite, same_bits

if actcore.build_info()["cuda_missing"]:
    pytest.skip(f"no CUDA operators: {actcore.build_info()['cuda_missing']}", allow_module_level=True)
if not torch.cuda.is_available():
    pytest.skip("torch finds no GPU", allow_module_level=True)

pytestmark = pytest.mark.cuda

ops = torch.ops.actcore
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
WHOLE_OR_NOT = (640, 600)  # elements: rows that are moved 16 bytes at a time, and others
KEY = (0x0123_4567_89AB_CDEF, -3)
ORDERS = (
    *((1, 1, 0), (3, 49, 0), (64, 1, 0), (2, 2100, 0), (7, 16, 0), (40, 3, 0)),
    *((64, 130, 64), (70, 5, 70), (1, 300, 8), (4, 130, 260), (5, 49, 40), (3, 1100, 3), (16, 5, 16)),
)
"""Statistics, of a block where channels are last; how many elements or rows have the same; channels that are last."""


def sample(order, dtype):
    """Four runs of each statistic, or two blocks; and the statistics that there are."""
    count, inner, channels = order
    if channels:
        return normal(2 * inner * channels, dtype) + 1, (2 * count, inner, channels)
    return normal(4 * count * inner, dtype) + 1, order


def assert_clamped(x, bits, group_size, clamp, on_gpu=None):
    options = (bits, group_size, bits % 3 > 0, *KEY, *clamp)
    expected = ops.group_affine_clamped_compress(x, *options)
    got = ops.group_affine_clamped_compress(x.cuda() if on_gpu is None else on_gpu, *options)
    for one, other in zip(got, expected, strict=True):
        assert_same_bytes(one, other, (x.numel(), *options))


def assert_near(found, expected):
    """At most 64 elements are added before a sum goes on in float64, on either device."""
    ordinary = expected.isfinite().all(0)
    scale = expected.abs().sum(0)
    near = (found.cpu() - expected).abs() <= 130 * torch.finfo(found.dtype).eps * scale
    assert bool(near[:, ordinary].all())


def assert_standardized(x, order, bits=4, group_size=96, stochastic=True, on_gpu=None):
    case = f"{x.dtype} {order} bits={bits} group_size={group_size} numel={x.numel()}"
    given = (bits, group_size, stochastic, *KEY, *order)
    _, *where = order
    on_gpu = x.cuda() if on_gpu is None else on_gpu
    *stored, found = ops.group_affine_standardized_compress(on_gpu, *given)
    assert_near(found, ops.group_affine_standardized_compress(x, *given)[2])
    codes, bounds = reference.group_affine_standardized_codes(x, found.cpu(), *given)
    assert_same_bytes(stored[0], codes, case)
    assert same_bits(stored[1].cpu(), bounds), case  # the reference has torch's NaN, which is none of ours
    rest = (x.numel(), *where, bits, group_size)
    value = ops.group_affine_standardized_decompress(*(part.cpu() for part in (*stored, found)), *rest)
    assert_same_bytes(ops.group_affine_standardized_decompress(*stored, found, *rest), value, case)
    moved = torch.cat([found.new_zeros(1), found.view(-1)])[1:].view(2, -1)  # at no multiple of 16 bytes
    assert_same_bytes(ops.group_affine_standardized_decompress(*stored, moved, *rest), value, case)


@every_dtype
def test_clamped(dtype):
    for bits in BITS:
        for group_size in (32, 96, 256, 2048):
            assert_clamped(normal(20_000, dtype), bits, group_size, (-0.3, 0.7))
    for clamp in ((-10.0, 0.0), (0.1, 0.1), (2.0, 3.0)):
        for numel in NUMELS[1:]:
            assert_clamped(normal(numel, dtype), 4, 96, clamp)
        for numel in WHOLE_OR_NOT:
            for x in (hard_ranges(dtype, numel) | not_finite(dtype, numel)).values():
                assert_clamped(x, 5, 96, clamp)
    memory = normal(4000, dtype)
    for start in (1, 3, 8):
        assert_clamped(memory[start:], 4, 256, (-1.0, 1.0), memory.cuda()[start:])


@every_dtype
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_orders_of_memory(dtype, order):
    x, order = sample(order, dtype)
    for group_size in (32, 256, 2048):
        assert_standardized(x, order, group_size=group_size)
    memory = torch.cat([x[:5], x])
    for start in (1, 5):
        assert_standardized(memory[start : start + x.numel()], order, on_gpu=memory.cuda()[start : start + x.numel()])


@every_dtype
def test_every_width_and_group_size(dtype):
    x = normal(160 * 70, dtype) * 3
    for order in ((70, 40, 0), (70, 160, 70), (64, 175, 64), (7, 1600, 0)):
        for bits in BITS:
            assert_standardized(x, order, bits, (96, 256)[bits % 2], bits % 3 > 0)
        for group_size in (32, 96, 192, 256, 544, 1056, 2048, 4096):
            assert_standardized(x, order, 5, group_size)


@every_dtype
def test_constant_channels_and_elements_that_are_not_finite(dtype):
    for order in ((8, 100, 0), (8, 100, 8), (4, 100, 8)):
        for constant in (0.1, torch.finfo(dtype).max / 64, 0.0):
            x = torch.full((800,), constant, dtype=dtype)
            *stored, found = ops.group_affine_standardized_compress(x.cuda(), 4, 96, True, *KEY, *order)
            assert_same_bytes(found[1].contiguous(), torch.zeros(order[0], dtype=found.dtype))
            back = ops.group_affine_standardized_decompress(*stored, found, 800, *order[1:], 4, 96)
            assert_same_bytes(back, x)
    for numel in WHOLE_OR_NOT:
        for x in not_finite(dtype, numel).values():
            for order in ((1, numel, 0), (5, numel // 5, 0), (10, numel // 10, 10), (10, numel // 20, 20)):
                assert_standardized(x, order)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=name_of)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=name_of)
def test_many_blocks(dtype, memory_format):
    """As of a network's layers: thousands of blocks, whose results do not depend on which runs first."""
    for shape, groups in (((16, 64, 56, 56), 0), ((16, 512, 7, 7), 0), ((4, 320, 32, 32), 32)):
        samples, channels, *_ = shape
        x = (normal(torch.Size(shape).numel(), dtype) + 0.5).view(shape).contiguous(memory_format=memory_format)
        last, plane = memory_format == torch.channels_last, shape[2] * shape[3]
        if groups:
            order = (samples * groups, plane if last else channels // groups * plane, channels if last else 0)
        else:
            order = (channels, samples * plane if last else plane, channels if last else 0)
        flat = x.permute(0, 2, 3, 1).reshape(-1) if last else x.reshape(-1)
        given, on_gpu = (4, 256, True, *KEY, *order), flat.cuda()
        first, again = (ops.group_affine_standardized_compress(on_gpu, *given) for _ in range(2))
        assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
        assert_near(first[2], ops.group_affine_standardized_compress(flat, *given)[2])
        rest = (flat.numel(), *order[1:], 4, 256)
        value = ops.group_affine_standardized_decompress(*(part.cpu() for part in first), *rest)
        assert_same_bytes(ops.group_affine_standardized_decompress(*first, *rest), value, shape)


def test_nothing_waits_for_the_device():
    x = normal(6400).cuda()
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for order in ((64, 10, 0), (64, 100, 64)):
            stored = ops.group_affine_standardized_compress(x, 4, 256, True, *KEY, *order)
            ops.group_affine_standardized_decompress(*stored, 6400, *order[1:], 4, 256)
        ops.group_affine_clamped_compress(x, 4, 256, True, *KEY, -1.0, 1.0)
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def test_what_is_refused():
    x = normal(8192).cuda()
    with pytest.raises(RuntimeError, match="group_size must be at most 4096, got 8192"):
        ops.group_affine_standardized_compress(x, 4, 8192, True, *KEY, 8, 1024, 0)
    with pytest.raises(RuntimeError, match="must be whole runs or rows of 3 statistics"):
        ops.group_affine_standardized_compress(x, 4, 256, True, *KEY, 3, 1024, 0)
    with pytest.raises(RuntimeError, match="least and most must be finite"):
        ops.group_affine_clamped_compress(x, 4, 256, True, *KEY, 1.0, 0.5)
    codes, bounds, found = ops.group_affine_standardized_compress(x, 4, 256, True, *KEY, 8, 1024, 0)
    with pytest.raises(RuntimeError, match="codes and statistics must be on one device"):
        ops.group_affine_standardized_decompress(codes, bounds, found.cpu(), 8192, 1024, 0, 4, 256)
    empty = ops.group_affine_standardized_compress(x[:0], 4, 256, True, *KEY, 8, 1024, 0)
    assert [part.numel() for part in empty] == [0, 0, 0]


@every_dtype
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_given_statistics_and_activations(dtype, order):
    """Bit for bit the CPU's, but for GELU and SiLU, whose exponentials differ by a few units of the last place."""
    x, (count, *where) = sample(order, dtype)
    wide = torch.promote_types(dtype, torch.float32)
    means, factors = torch.linspace(-1, 2, count, dtype=wide), torch.linspace(0.3, 4, count, dtype=wide)
    options = (4, 96, True, *KEY)
    expected = reference.group_affine_standardized_compress_given(x, *options, means, factors, *where)
    stored = [torch.zeros_like(part).cuda() for part in expected]
    on_gpu = (x.cuda(), *options, means.cuda(), factors.cuda(), *where, *stored)
    ops.group_affine_standardized_compress.given(*on_gpu)
    for one, other in zip(stored, expected, strict=True):
        assert_same_bytes(one, other, (dtype, order))
    codes, bounds, (means, deviations) = expected
    for function in ("none", "relu", "silu", "gelu", "gelu_tanh"):
        for added in (None, x.flip(0)):
            given = (codes, bounds, deviations, means, added)
            rest = (x.numel(), *where, 4, 96, function)
            value = ops.group_affine_standardized_activation(*given, *rest)
            moved = (None if one is None else one.cuda() for one in given)
            got = ops.group_affine_standardized_activation(*moved, *rest)
            if function in ("none", "relu"):
                assert_same_bytes(got, value, (dtype, order, function))
            else:
                near = 8 * torch.finfo(dtype).eps * value.abs().max()
                assert bool((got.cpu() - value).abs().max() <= near), (dtype, order, function)


@every_dtype
def test_opcheck(dtype):
    x = normal(1000, dtype).cuda()
    torch.library.opcheck(ops.group_affine_clamped_compress.default, (x, 4, 256, True, 1, 2, -1.0, 1.0))
    for order in ((10, 50, 0), (10, 100, 10)):
        torch.library.opcheck(ops.group_affine_standardized_compress.default, (x, 4, 256, True, 1, 2, *order))
        stored = ops.group_affine_standardized_compress(x, 4, 256, True, 1, 2, *order)
        torch.library.opcheck(ops.group_affine_standardized_decompress.default, (*stored, 1000, *order[1:], 4, 256))
