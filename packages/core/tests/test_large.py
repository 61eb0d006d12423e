"""Tensors of 2**31 elements and more: no size or position is held in 32 bits."""

import os

import pytest
import torch

import actcore
from actcore.ops import packed_bytes

ops = torch.ops.actcore
N = 2**31 + 4096 + 77
no_bytes = torch.empty(0, dtype=torch.uint8)

needs_memory = pytest.mark.skipif(
    os.environ.get("ACTCORE_SLOW_TESTS") != "1", reason="takes up to 10 GB and a minute; ACTCORE_SLOW_TESTS=1 runs it"
)


@pytest.mark.parametrize("bits", [1, 3, 8])
@pytest.mark.parametrize("numel", [2**31 - 1, 2**31, 2**32 + 1, 2**40 + 7, 2**59])
def test_sizes_do_not_overflow(bits, numel):
    """The operators compute how many bytes they expect before they look at any."""
    expected = -(-numel * bits // 8)
    assert packed_bytes(numel, bits) == expected
    for operator, name in ((ops.unpack_bits, "packed"), (ops.group_affine_decompress, "codes")):
        arguments = (bits, numel) if name == "packed" else (torch.empty(0, 2), numel, bits, 256)
        with pytest.raises(RuntimeError, match=f"{name} must hold {expected} bytes, got 0"):
            operator(no_bytes, *arguments)
    with pytest.raises(RuntimeError, match=f"mask must hold {-(-numel // 8)} bytes, got 0"):
        ops.bit_mask_decompress(no_bytes, numel, torch.float32, 0.0, 1.0)


def test_the_largest_numel_of_all_does_not_overflow():
    """bits * numel and numel + group_size - 1 would both exceed 2**63."""
    with pytest.raises(RuntimeError, match=f"packed must hold {2**63 - 1} bytes, got 0"):
        ops.unpack_bits(no_bytes, 8, 2**63 - 1)
    with pytest.raises(RuntimeError, match=f"codes must hold {2**60} bytes, got 0"):
        ops.group_affine_decompress(no_bytes, torch.empty(0, 2), 2**63 - 1, 1, 256)


def test_meta_tensors():
    """Codec, layout and fake kernels together, where nothing is allocated."""
    x = torch.empty(2**20, 2**16, device="meta", dtype=torch.bfloat16).t()
    for codec in (actcore.GroupAffine(3), actcore.Positive()):
        c = actcore.compress(x, codec)
        bits = getattr(codec, "bits", 1)
        assert c.payload[0].shape == (2**36 * bits // 8,)
        y = actcore.decompress(c)
        assert (y.shape, y.stride()) == (x.shape, x.stride())
    assert actcore.compress(x, actcore.GroupAffine(3)).nbytes == 2**36 * 3 // 8 + 2**36 // 256 * 4


@needs_memory
def test_group_affine():
    """The last group, which lies beyond 2**31, gets the bounds, codes and values of its own elements."""
    tail = torch.arange(N % 1024) % 4
    x = torch.zeros(N, dtype=torch.bfloat16)
    x[-len(tail) :] = tail.bfloat16()
    codes, bounds = ops.group_affine_compress(x, 2, 1024, False, 0, 0)
    assert bounds[-1].tolist() == [0, 3]
    assert bounds[:-1].count_nonzero() == 0
    assert codes[: -(-len(tail) * 2 // 8)].count_nonzero() == 0
    del x
    y = ops.group_affine_decompress(codes, bounds, N, 2, 1024)
    assert torch.equal(y[-len(tail) :], tail.bfloat16())
    assert y[: -len(tail)].count_nonzero() == 0


@needs_memory
def test_packing_and_masks():
    codes = torch.zeros(N, dtype=torch.uint8)
    codes[2**31 :: 3] = 1
    packed, misfit = ops.pack_bits(codes, 1)
    assert misfit.item() == 0
    assert torch.equal(ops.unpack_bits(packed, 1, N), codes)
    mask, misfit = ops.bit_mask_compress(codes, 0.0, 1.0)
    assert misfit.item() == 0
    assert torch.equal(mask, packed)
    assert torch.equal(ops.bit_mask_decompress(mask, N, torch.uint8, 0.0, 1.0), codes)
    codes[-1] = 2
    assert ops.pack_bits(codes, 1)[1].item() == 1
    assert ops.bit_mask_compress(codes, 0.0, 1.0)[1].item() == 1


@needs_memory
def test_noise_beyond_2_to_the_31():
    """Element 2**31 takes block 2**27 of the noise, so its neighbourhood rounds otherwise than element 0's."""
    x = torch.zeros(N, dtype=torch.float16)
    for start in (0, 2**31):
        x[start : start + 256] = 0.5
        x[start], x[start + 1] = 0, 1
    codes, _ = ops.group_affine_compress(x, 1, 256, True, 0, 0)
    first = actcore.unpack_bits(codes[:32], 1, 256)
    there = actcore.unpack_bits(codes[2**28 : 2**28 + 32], 1, 256)
    words = [word for block in range(2**27, 2**27 + 16) for word in actcore._native.philox(0, 0, block)]
    noise = torch.tensor([word >> shift & 255 for word in words for shift in (0, 8, 16, 24)])
    assert torch.equal(there[2:], (noise >= 128).to(torch.uint8)[2:])
    assert not torch.equal(there, first)
