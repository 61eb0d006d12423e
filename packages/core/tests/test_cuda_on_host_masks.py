"""The same as test_cuda_on_host.py, of masks and pooling."""

import math

import pytest
import torch

from actcore.pooling import window_bits

from .emulation import ELEMENT_TYPES, Written, at_offset, same_bytes
from .fused_samples import POOLS
from .samples import DTYPES, INTEGERS, NUMELS, integers, name_of, normal, not_finite

ops = torch.ops.actcore
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name_of)

SEED, STREAM = 0x0123_4567_89AB_CDEF, 3


def pattern(value, dtype):
    """The bits of a value, as the kernels are given them."""
    held = torch.tensor([value], dtype=dtype)
    unsigned = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}[held.element_size()]
    return held.view(unsigned).item()


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool, *INTEGERS], ids=name_of)
def test_masks_of_two_values(kernels, dtype):
    low, high = (0, 1) if dtype == torch.bool else (0, 3)
    for numel in NUMELS[1:]:
        for skip in (0, 1, 3):
            chosen = integers(numel, 0, 1) > 0
            x = torch.where(chosen, high, low).to(dtype)
            given = at_offset(x, skip * x.element_size())
            expected, _ = ops.bit_mask_compress(x, low, high)
            mask, misfit = Written(expected.numel(), torch.uint8, skip=skip), torch.zeros(1, dtype=torch.int32)
            values = (pattern(low, dtype), pattern(high, dtype))
            what = (given.data_ptr(), x.element_size(), dtype == torch.bool, numel, *values)
            kernels.run("bit_mask_compress", kernels.struct("BitMaskCompress")(*what, mask.data_ptr()), misfit)
            same_bytes(mask.tensor(), expected, (numel, skip))
            assert misfit.item() == 0
            got = Written(numel, dtype, skip=skip * x.element_size())
            packed = at_offset(expected, skip)  # lives until the kernel has read it
            what = (packed.data_ptr(), x.element_size(), numel, *values, got.data_ptr())
            kernels.run("bit_mask_decompress", kernels.struct("BitMaskDecompress")(*what))
            same_bytes(got.tensor(), x, (numel, skip))
    if dtype != torch.bool:
        given[-1] = 2
        what = (given.data_ptr(), x.element_size(), False, numel, *values, mask.data_ptr())
        kernels.run("bit_mask_compress", kernels.struct("BitMaskCompress")(*what), misfit)
        assert misfit.item() == 1


@every_dtype
def test_relu_dropout_and_signs(kernels, dtype):
    number = ELEMENT_TYPES[dtype]
    for x in (*(normal(numel, dtype) for numel in NUMELS[1:]), *not_finite(dtype).values()):
        for skip in (0, 1, 3):
            numel, given = x.numel(), at_offset(x, skip * x.element_size())
            what = (given.data_ptr(), number, numel)

            drop = (19661, 1 / (1 - 19661 / 65536), SEED, STREAM, 0)
            dropped, mask = ops.dropout_mask(x, 0.3, SEED, STREAM)
            cases = {
                "relu_mask": (kernels.struct("ReluMask"), what, ops.relu_mask(x)),
                "dropout_mask": (kernels.struct("DropoutMask"), (*what, *drop), (dropped, mask)),
            }
            for kernel, (struct, arguments, expected) in cases.items():
                output = Written(numel, dtype, skip=skip * dtype.itemsize)
                written = Written(mask.numel(), torch.uint8, skip=skip)
                kernels.run(kernel, struct(*arguments, output.data_ptr(), written.data_ptr()))
                same_bytes(output.tensor(), expected[0], (kernel, numel, skip))
                same_bytes(written.tensor(), expected[1], (kernel, numel, skip))
            got = Written(numel, dtype, skip=skip * dtype.itemsize)
            packed = at_offset(mask, skip)  # likewise
            backward = (given.data_ptr(), packed.data_ptr(), number, numel, 1.5, got.data_ptr())
            kernels.run("mask_backward", kernels.struct("MaskBackward")(*backward))
            same_bytes(got.tensor(), ops.mask_backward(x, mask, 1.5), (numel, skip))
            sign = Written(mask.numel(), torch.uint8, skip=skip)
            kernels.run("positive_mask", kernels.struct("PositiveMask")(*what, sign.data_ptr()))
            same_bytes(sign.tensor(), ops.positive_mask(x), (numel, skip))


FAR = 2**31 - 1
# A stride that no int32 can be added to: the kernels take 64 bits, which sizes that a test can hold do not ask for.
WIDE = {
    "rows far apart": ((2, 3, 9, 11), [3, 3], [FAR, 2], [1, 1], [1, 1], False),
    "columns far apart": ((2, 9, 11), [4, 2], [2, FAR], [0, 1], [2, 1], True),
}


def pool_shape(kernels, shape, output, options, bits):
    """The struct: pooling of fewer dimensions is one of three."""
    dims = len(options[0])
    struct = kernels.struct("PoolShape")()
    struct.planes = torch.Size(shape[: len(shape) - dims]).numel()
    struct.bits = bits
    fields = ("size", shape[-dims:], 1), ("out", output[-dims:], 1), ("kernel", options[0], 1)
    fields += ("stride", options[1], 1), ("padding", options[2], 0), ("dilation", options[3], 1)
    for name, values, filler in fields:
        getattr(struct, name)[:] = [filler] * (3 - dims) + list(values)
    return struct


@every_dtype
@pytest.mark.parametrize("name", [*POOLS, *WIDE])
def test_max_pool(kernels, name, dtype):
    shape, *options = (POOLS | WIDE)[name]
    x = (2 * normal(torch.Size(shape).numel())).round().view(shape).to(dtype)  # with ties
    output, packed = ops.max_pool(x, *options)
    struct = pool_shape(kernels, shape, output.shape, options, window_bits(options[0]))
    got, got_packed = Written(output.numel(), dtype), Written(packed.numel(), torch.uint8)
    what = (struct, x.data_ptr(), ELEMENT_TYPES[dtype], got.data_ptr(), got_packed.data_ptr())
    kernels.run("max_pool", kernels.struct("MaxPool")(*what))
    same_bytes(got.tensor(), output, name)
    same_bytes(got_packed.tensor(), packed, name)

    gradient = normal(output.numel(), dtype, seed=1).view(output.shape)
    got = Written(x.numel(), dtype)
    what = (struct, gradient.data_ptr(), packed.data_ptr(), ELEMENT_TYPES[dtype], got.data_ptr())
    kernels.run("max_pool_backward", kernels.struct("MaxPoolBackward")(*what))
    same_bytes(got.tensor(), ops.max_pool_backward(gradient, packed, shape, *options), name)

    if dtype == torch.float32:
        indices = ops.window_index_unpack(packed, shape, *options)
        got = Written(indices.numel(), torch.int64)
        what = (struct, packed.data_ptr(), got.data_ptr())
        kernels.run("window_index_unpack", kernels.struct("WindowIndexUnpack")(*what))
        same_bytes(got.tensor(), indices, name)
        again, misfit = Written(packed.numel(), torch.uint8), torch.zeros(1, dtype=torch.int32)
        what = (struct, indices.data_ptr(), again.data_ptr(), misfit.data_ptr())
        kernels.run("window_index_pack", kernels.struct("WindowIndexPack")(*what))
        same_bytes(again.tensor(), packed, name)
        assert misfit.item() == 0


def test_backward_of_any_indices(kernels):
    """Each element wins any number of its windows, and what lies in the padding wins some."""
    for shape, *options in POOLS.values():
        output, _ = ops.max_pool(torch.zeros(shape), *options)
        bits = window_bits(options[0])
        packed, _ = ops.pack_bits(integers(output.numel(), 0, math.prod(options[0]) - 1, torch.uint8), bits)
        gradient = normal(output.numel()).view(output.shape)
        struct = pool_shape(kernels, shape, output.shape, options, bits)
        got = Written(torch.Size(shape).numel(), torch.float32)
        what = (struct, gradient.data_ptr(), packed.data_ptr(), ELEMENT_TYPES[torch.float32], got.data_ptr())
        kernels.run("max_pool_backward", kernels.struct("MaxPoolBackward")(*what))
        same_bytes(got.tensor(), ops.max_pool_backward(gradient, packed, shape, *options), shape)


@every_dtype
@pytest.mark.parametrize("name", POOLS)
def test_max_pool_of_what_is_not_finite(kernels, name, dtype):
    """NaN wins over all, and a window of minus infinity has its first element as its maximum."""
    shape, *options = POOLS[name]
    x = (2 * normal(torch.Size(shape).numel())).round()
    for number, value in enumerate((math.nan, math.inf, -math.inf)):
        x[number::4] = value
    x = x.view(shape).to(dtype)
    for given in (x, torch.full_like(x, -math.inf), torch.full_like(x, math.nan)):
        output, packed = ops.max_pool(given, *options)
        struct = pool_shape(kernels, shape, output.shape, options, window_bits(options[0]))
        got, got_packed = Written(output.numel(), dtype), Written(packed.numel(), torch.uint8)
        what = (struct, given.data_ptr(), ELEMENT_TYPES[dtype], got.data_ptr(), got_packed.data_ptr())
        kernels.run("max_pool", kernels.struct("MaxPool")(*what))
        same_bytes(got.tensor(), output, name)
        same_bytes(got_packed.tensor(), packed, name)


@pytest.mark.parametrize("name", [*POOLS, *WIDE])
def test_any_code_and_any_index(kernels, name):
    """Codes of places outside of the input become -1, and an index that is in no window is told."""
    shape, *options = (POOLS | WIDE)[name]
    output, packed = ops.max_pool(torch.zeros(shape), *options)
    bits = window_bits(options[0])
    struct = pool_shape(kernels, shape, output.shape, options, bits)
    packed = ops.pack_bits(integers(output.numel(), 0, 2**bits - 1, torch.uint8), bits)[0]
    expected = ops.window_index_unpack(packed, shape, *options)
    got = Written(expected.numel(), torch.int64)
    kernels.run("window_index_unpack", kernels.struct("WindowIndexUnpack")(struct, packed.data_ptr(), got.data_ptr()))
    same_bytes(got.tensor(), expected, name)

    x = normal(torch.Size(shape).numel()).view(shape)
    right = ops.window_index_unpack(ops.max_pool(x, *options)[1], shape, *options)
    plane, misfits = torch.Size(shape[-len(options[0]) :]).numel(), set()
    for place, index in zip(integers(20, 0, right.numel() - 1), integers(20, -1, plane), strict=True):
        indices = right.clone()
        indices.view(-1)[place] = index
        expected, expected_misfit = ops.window_index_pack(indices, shape, *options)
        again, misfit = Written(packed.numel(), torch.uint8), torch.zeros(1, dtype=torch.int32)
        what = (struct, indices.data_ptr(), again.data_ptr(), misfit.data_ptr())
        kernels.run("window_index_pack", kernels.struct("WindowIndexPack")(*what))
        assert misfit.item() == expected_misfit.item(), (place, index)
        misfits.add(misfit.item())
        if not misfit.item():
            same_bytes(again.tensor(), expected, name)
    assert misfits >= {1}
