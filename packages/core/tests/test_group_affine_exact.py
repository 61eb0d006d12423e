"""The group-affine kernels give every bit that the reference gives, for any input, thread count and kernel set."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from actcore import build_info, reference

from .samples import BITS, DTYPES, GROUP_SIZES, NUMELS, hard_ranges, name_of, normal, not_finite, same_bits

SEED, STREAM = 0x0123_4567_89AB_CDEF, -3

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
both_roundings = pytest.mark.parametrize("stochastic", [True, False], ids=["stochastic", "nearest"])


def assert_as_reference(x, bits, group_size, stochastic):
    case = f"bits={bits} group_size={group_size} numel={x.numel()}"
    options = (bits, group_size, stochastic, SEED, STREAM)
    codes, bounds = torch.ops.actcore.group_affine_compress(x, *options)
    expected_codes, expected_bounds = reference.group_affine_compress(x, *options)
    assert same_bits(codes, expected_codes), case
    assert same_bits(bounds, expected_bounds), case

    value = torch.ops.actcore.group_affine_decompress(codes, bounds, x.numel(), bits, group_size)
    assert same_bits(value, reference.group_affine_decompress(codes, bounds, x.numel(), bits, group_size)), case


@every_dtype
@pytest.mark.parametrize("bits", BITS)
@both_roundings
def test_every_width_and_length(dtype, bits, stochastic):
    """The longest length takes every group size; every length takes two."""
    for group_size in GROUP_SIZES:
        assert_as_reference(normal(NUMELS[-1], dtype), bits, group_size, stochastic)
    for numel in NUMELS:
        for group_size in (96, 256):
            assert_as_reference(normal(numel, dtype), bits, group_size, stochastic)


@every_dtype
@both_roundings
def test_hard_ranges(dtype, stochastic):
    for name, x in hard_ranges(dtype).items():
        for bits in (1, 2, 4, 8):
            try:
                assert_as_reference(x, bits, 256, stochastic)
            except AssertionError as error:
                error.add_note(name)
                raise


@every_dtype
@pytest.mark.parametrize("bits", [1, 4, 8])
def test_groups_that_are_not_finite(dtype, bits):
    for name, x in not_finite(dtype).items():
        try:
            assert_as_reference(x, bits, 256, stochastic=True)
        except AssertionError as error:
            error.add_note(name)
            raise


@every_dtype
def test_misaligned_input(dtype):
    """A view may start at any element: no kernel may count on its address."""
    memory = normal(2000, dtype)
    for start in (1, 2, 3, 5, 7, 9, 15):
        assert_as_reference(memory[start : start + 1000], 4, 256, stochastic=True)


@every_dtype
@pytest.mark.parametrize("bits", [1, 3, 8])
def test_any_codes_and_bounds_decode_alike(dtype, bits):
    """Decoding is exact for payloads that no compression made, such as ones with low above high."""
    codes = (normal(1000) * 100).to(torch.int64).to(torch.uint8)[: 125 * bits]
    bounds = normal(8, dtype, seed=1).view(4, 2)
    value = torch.ops.actcore.group_affine_decompress(codes, bounds, 1000, bits, 256)
    assert same_bits(value, reference.group_affine_decompress(codes, bounds, 1000, bits, 256))


@pytest.mark.parametrize("bits", [1, 3, 4, 8])
def test_any_number_of_threads(set_threads, bits):
    """300,001 elements are enough for each of four threads to get a share."""
    x = normal(300_001)
    set_threads(1)
    codes, bounds = torch.ops.actcore.group_affine_compress(x, bits, 96, True, SEED, STREAM)
    value = torch.ops.actcore.group_affine_decompress(codes, bounds, x.numel(), bits, 96)
    assert same_bits(codes, reference.group_affine_compress(x, bits, 96, True, SEED, STREAM)[0])
    for threads in (2, 4):
        set_threads(threads)
        again = torch.ops.actcore.group_affine_compress(x, bits, 96, True, SEED, STREAM)
        assert same_bits(again[0], codes)
        assert same_bits(again[1], bounds)
        assert same_bits(torch.ops.actcore.group_affine_decompress(*again, x.numel(), bits, 96), value)


def test_every_kernel_set():
    """The sets are compiled from one source, but their vectors, fused operations and tails differ."""
    script = Path(__file__).with_name("kernel_digest.py")
    fastest, *others = [
        subprocess.Popen([sys.executable, script, kernels], stdout=subprocess.PIPE, text=True)
        for kernels in build_info()["runnable_cpu_kernels"]
    ]
    expected = fastest.communicate()[0].splitlines()
    assert fastest.returncode == 0
    assert len(expected) > 1000
    for other in others:
        assert other.communicate()[0].splitlines() == expected, other.args
        assert other.returncode == 0
