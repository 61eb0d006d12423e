"""What is measured beside what: plain PyTorch's versions, and the table of cases."""

import pytest
import torch

import actcore
from bench.suites.kernels import contenders
from bench.suites.kernels.cases import cases
from bench.suites.kernels.contenders import Pass, RoundTrip, yardsticks

KIB = 2**10


def normal(numel, dtype=torch.float32):
    return torch.randn(numel, generator=torch.Generator().manual_seed(0)).to(dtype)


# ---- plain PyTorch ----


@pytest.mark.parametrize("bits", range(1, 9))
def test_plain_packing_is_actcore_s(bits):
    codes = (torch.arange(512) * 37 % 2**bits).to(torch.uint8)
    packed = contenders.pack(codes, bits)
    assert torch.equal(packed, actcore.pack_bits(codes, bits))
    assert torch.equal(contenders.unpack(packed, bits, 512), codes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bits", [1, 3, 4, 8])
def test_plain_groups_are_off_by_less_than_a_step(bits, dtype):
    """Less than a step of the group, and what rounding to the dtype adds: half an ulp of a value below 4."""
    x = normal(1024, dtype)
    stored = contenders.compress_groups(x, bits)
    y = contenders.decompress_groups(stored, bits, 1024)
    assert (y.dtype, y.shape) == (dtype, x.shape)
    step = (stored[2] - stored[1]).double() / (2**bits - 1)
    error = (y - x).double().abs().view(-1, 256)
    assert (error <= step * (1 + 1e-3) + 2 * torch.finfo(dtype).eps).all()
    assert sum(part.nbytes for part in stored) == actcore.compress(x, actcore.GroupAffine(bits)).nbytes


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_plain_float8_is_off_by_half_a_unit_in_the_last_place(dtype):
    """Half of eps of the element, or of the smallest normal: in units of the group's scale."""
    x = normal(1024)
    stored = contenders.compress_float8(x, dtype)
    info = torch.finfo(dtype)
    bound = (x.view(-1, 256).abs().clamp(min=stored[1] * info.smallest_normal)) * info.eps / 2 * (1 + 1e-6)
    assert ((contenders.decompress_float8(stored) - x).view(-1, 256).abs() <= bound).all()


# ---- the table of cases ----


def test_every_case_runs_with_every_dtype():
    for case in cases():
        for dtype in case.dtypes:
            x = case.prepare(normal(4 * KIB), dtype)
            assert x.dtype == dtype
            for contender in (*yardsticks(x), *(one for other in case.contenders for one in other.contenders(x))):
                assert contender.moved_bytes > 0
                contender.action()


def test_groups_of_another_size():
    """A case for each size, which stores and returns what the codec does; a row of 64 may end within a group."""
    sizes = {case.name: case for case in cases((256, 192))}
    assert len(sizes) == len(cases()) + 8 + 1 + 2  # widths, rows, formats
    x = normal(4 * KIB)
    for name, codec in {
        "GroupAffine, 4 bits, groups of 192": actcore.GroupAffine(4, 192),
        "Float8, e5m2, groups of 192": actcore.Float8("e5m2", 192),
        "Affine rows, 4 bits, groups of 192": actcore.GroupAffineRows((4,) * 64, 192),
    }.items():
        [own] = sizes[name].contenders
        stored = own.compress(x)
        expected = actcore.compress(x.view(64, -1), codec)
        assert torch.equal(own.decompress(stored), expected.decompress().view(-1)), name


def test_codecs_beside_each_other_store_and_return_the_same():
    """Exact ones return the same values; all take the same bytes, so that they are compared by the same work."""
    for case in cases():
        if not isinstance(case.contenders[0], RoundTrip):
            continue
        x = case.prepare(normal(4 * KIB), case.dtypes[0])
        if len(case.contenders) == 1:  # beside copies alone
            continue
        own, other = case.contenders
        mine, theirs = own.compress(x), other.compress(x)
        assert sum(part.nbytes for part in own.parts(mine)) == sum(part.nbytes for part in other.parts(theirs)), (
            case.name
        )
        if case.name in ("BitMask", "Positive") or case.name.startswith("Narrow"):
            assert torch.equal(own.decompress(mine), other.decompress(theirs))


def test_bytes_that_must_move():
    x = normal(1024)
    compress, decompress = cases()[0].contenders[0].contenders(x)  # GroupAffine, 8 bits: 1024 codes, 4 pairs of bounds
    assert compress.moved_bytes == decompress.moved_bytes == 4096 + 1024 + 32
    copy, clone = yardsticks(x)
    assert copy.moved_bytes == clone.moved_bytes == 8192
    [relu] = Pass("torch", torch.relu).contenders(x)  # x, y, gradients of both; y once more, which is kept
    assert relu.moved_bytes == 5 * 4096
    [gelu] = Pass("torch", torch.nn.functional.gelu).contenders(x)
    assert gelu.moved_bytes == 5 * 4096
    [exp] = Pass("torch", lambda x: x.exp() * 2).contenders(x)  # what is kept is neither: written and read
    assert exp.moved_bytes == 6 * 4096


def test_a_pass_is_forward_and_backward():
    x = normal(1024)
    [contender] = Pass("torch", torch.relu).contenders(x)
    y, (gradient,) = contender.action()
    assert torch.equal(y, torch.relu(x))
    assert torch.equal(gradient != 0, x > 0)
    assert not x.requires_grad
