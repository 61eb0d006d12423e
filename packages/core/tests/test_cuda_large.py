"""On a GPU, too, no size or position is held in 32 bits.

All but the end of a tensor is zero. What is beyond 2**31 has groups, bytes and windows of its own, and comes to what
the same elements come to on the CPU by themselves. A small tensor on the CPU shows that this is so.
"""

import pytest
import torch

import actcore
from actcore import reference

from .samples import normal, same_bits

pytestmark = pytest.mark.cuda
ops = torch.ops.actcore
GIB = 2**30
TAIL = 4096 + 77
# Where the tensor's end begins, at least.
SMALL, LARGE = 2**12, 2**31


def missing(gibibytes):
    """Why there is no GPU for tensors of so much memory; empty where there is one."""
    if reason := actcore.build_info()["cuda_missing"]:
        return f"no CUDA operators: {reason}"
    if not torch.cuda.is_available():
        return "torch finds no GPU"
    free = torch.cuda.mem_get_info()[0] / GIB
    return "" if free >= gibibytes else f"takes {gibibytes} GiB of a GPU, of which {free:.0f} are free"


@pytest.fixture(params=[("cpu", SMALL), ("cuda", LARGE)], ids=["small", "beyond 2**31"])
def place(request):
    device, least = request.param
    if device == "cuda" and (reason := missing(32)):
        pytest.skip(reason)
    yield device, least
    if device == "cuda":
        torch.cuda.empty_cache()


def ending(place, dtype, unit, tail=TAIL):
    """A tensor of zeros with an end of its own, which begins at a multiple of ``unit``."""
    device, least = place
    start = -(-least // unit) * unit
    x = torch.zeros(start + tail, dtype=dtype, device=device)
    x[start:] = normal(tail).mul(10).to(dtype)
    return x, start


CODECS = [
    actcore.GroupAffine(4, rounding="nearest"),
    actcore.GroupAffine(3, 96, rounding="nearest"),
    actcore.GroupAffine(1, 2048, rounding="nearest"),
    actcore.Float8(rounding="nearest"),
    actcore.Positive(),
]


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_codecs(place, codec):
    x, start = ending(place, torch.bfloat16, 8 * getattr(codec, "group_size", 32))
    expected = actcore.compress(x[start:].cpu(), codec).decompress()
    stored = actcore.compress(x, codec)
    del x
    found = stored.decompress()
    assert same_bits(found[start:].cpu(), expected)
    assert not found[:start].any()


@pytest.mark.parametrize(("each", "rows", "channels"), [(1, 4160, 0), (64, 65, 64)], ids=["first", "last"])
def test_standardized(place, each, rows, channels):
    """The end has statistics of its own, one for all of its elements or for each of its channels."""
    x, start = ending(place, torch.bfloat16, 4160, tail=4160)
    count = x.numel() // 4160 * each
    codes, bounds, found = ops.group_affine_standardized_compress(x, 4, 64, False, 0, 0, count, rows, channels)
    assert not found[:, :-each].any()
    end, own, order = x[start:].cpu(), found[:, -each:].cpu(), (each, rows, channels)
    expected = reference.group_affine_standardized_compress(end, 4, 64, False, 0, 0, *order)[2]
    near = 65 * torch.finfo(torch.float32).eps * expected.abs().sum(0)  # as in test_standardized.py
    assert bool(((own - expected).abs() <= near).all())
    stored = reference.group_affine_standardized_codes(end, own, 4, 64, False, 0, 0, *order)
    assert torch.equal(codes[start // 2 :].cpu(), stored[0])
    assert same_bits(bounds[start // 64 :].cpu(), stored[1])
    value = ops.group_affine_standardized_decompress(codes, bounds, found, x.numel(), rows, channels, 4, 64)
    there = reference.group_affine_standardized_decompress(*stored, own, 4160, rows, channels, 4, 64)
    assert same_bits(value[start:].cpu(), there)
    assert not value[:start].any()


def test_integers(place):
    x, start = ending(place, torch.int16, 64)
    codec = actcore.Narrow(-100, 100)
    stored = actcore.compress(x, codec)
    assert torch.equal(stored.decompress(), x)
    assert torch.equal(stored.payload[0][start:].cpu(), actcore.compress(x[start:].cpu(), codec).payload[0])


def test_rows(place):
    """The last of three rows lies beyond 2**31."""
    device, least = place
    row = -(-(least // 2 + TAIL) // 256) * 256
    x = torch.zeros(3, row, dtype=torch.bfloat16, device=device)
    x[2, -TAIL:] = normal(TAIL).to(x)
    stored = actcore.compress(x, actcore.GroupAffineRows((1, 2, 4), rounding="nearest"))
    expected = actcore.compress(x[2, -(TAIL // 256 + 1) * 256 :].cpu(), actcore.GroupAffine(4, rounding="nearest"))
    del x
    found = stored.decompress()
    assert same_bits(found[2, -TAIL:].cpu(), expected.decompress()[-TAIL:])
    assert not found[:2].any()


def test_masks_and_codes(place):
    x, start = ending(place, torch.bfloat16, 1024)
    end = x[start:].cpu()
    output, mask = ops.relu_mask(x)
    expected, expected_mask = ops.relu_mask(end)
    assert same_bits(output[start:].cpu(), expected)
    assert torch.equal(mask[start // 8 :].cpu(), expected_mask)
    gradient = ops.mask_backward(x, mask, 1.5)
    assert same_bits(gradient[start:].cpu(), ops.mask_backward(end, expected_mask, 1.5))
    del output, mask, gradient
    boundaries, levels = torch.linspace(-2, 2, 7), torch.linspace(-1, 1, 8)
    codes = ops.stepwise_codes(x, boundaries.to(x.device), 3)
    expected_codes = ops.stepwise_codes(end, boundaries, 3)
    assert torch.equal(codes[start * 3 // 8 :].cpu(), expected_codes)
    found = ops.stepwise_backward(x, codes, levels.to(x.device), 3)
    assert same_bits(found[start:].cpu(), ops.stepwise_backward(end, expected_codes, levels, 3))


def test_pools(place):
    """Of images of 8 x 8, each of which is pooled by itself."""
    x, start = ending(place, torch.bfloat16, 64, tail=64 * 65)
    options = ([3, 3], [2, 2], [1, 1], [1, 1], False)
    images, end = x.view(-1, 1, 8, 8), x[start:].cpu().view(-1, 1, 8, 8)
    output, packed = ops.max_pool(images, *options)
    expected, expected_packed = ops.max_pool(end, *options)
    assert same_bits(output[start // 64 :].cpu(), expected)
    gradient = ops.max_pool_backward(output, packed, list(images.shape), *options)
    expected_gradient = ops.max_pool_backward(expected, expected_packed, list(end.shape), *options)
    assert same_bits(gradient[start // 64 :].cpu(), expected_gradient)


def test_noise(place):
    """Each element's is that of its position: element 2**31 takes block 2**27 of Philox, or ``start / 16``."""
    device, least = place
    x = torch.zeros(least + 256, dtype=torch.float16, device=device)
    x[least:] = 0.5
    x[least], x[least + 1] = 0, 1
    codes, _ = ops.group_affine_compress(x, 1, 256, True, 0, 0)
    there = actcore.unpack_bits(codes[least // 8 :].cpu(), 1, 256)
    blocks = range(least // 16, least // 16 + 16)
    words = [word for block in blocks for word in actcore._native.philox(0, 0, block)]
    noise = torch.tensor([word >> shift & 255 for word in words for shift in (0, 8, 16, 24)])
    assert torch.equal(there[2:], (noise >= 128).to(torch.uint8)[2:])
