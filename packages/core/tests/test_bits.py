"""Packing codes of a few bits end to end."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import actcore
from actcore import reference

from .samples import BITS, NUMELS, same_bits

every_width = pytest.mark.parametrize("bits", BITS)


def codes_of(numel, bits):
    generator = torch.Generator().manual_seed(numel)
    return torch.randint(2**bits, (numel,), dtype=torch.uint8, generator=generator)


@every_width
@pytest.mark.parametrize("numel", NUMELS)
def test_packs_as_the_reference_and_back(bits, numel):
    codes = codes_of(numel, bits)
    packed = actcore.pack_bits(codes, bits)
    assert same_bits(packed, reference.pack_bits(codes, bits))
    assert same_bits(actcore.unpack_bits(packed, bits, numel), codes)


@every_width
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_threads_share_100_003_codes(set_threads, bits, threads):
    set_threads(threads)
    codes = codes_of(100_003, bits)
    packed = actcore.pack_bits(codes, bits)
    assert same_bits(packed, reference.pack_bits(codes, bits))
    assert same_bits(actcore.unpack_bits(packed, bits, 100_003), codes)


@settings(deadline=None)
@given(st.data())
def test_any_codes_come_back(data):
    bits = data.draw(st.integers(1, 8))
    codes = torch.tensor(data.draw(st.lists(st.integers(0, 2**bits - 1), max_size=300)), dtype=torch.uint8)
    packed = actcore.pack_bits(codes, bits)
    assert packed.numel() == -(-bits * len(codes) // 8)
    assert same_bits(actcore.unpack_bits(packed, bits, len(codes)), codes)


def test_the_format_is_a_little_endian_stream_of_bits():
    """Written out by hand: the first code in the lowest bits, the ninth bit in the next byte, zeros behind the last."""
    codes = torch.tensor([0b001, 0b010, 0b111, 0b100], dtype=torch.uint8)
    assert actcore.pack_bits(codes, 3).tolist() == [0b11_010_001, 0b0000_100_1]
    assert actcore.pack_bits(torch.tensor([1, 0, 1, 1], dtype=torch.uint8), 1).tolist() == [0b1101]
    assert actcore.pack_bits(torch.tensor([7, 200], dtype=torch.uint8), 8).tolist() == [7, 200]


@every_width
def test_unused_bits_are_zero_and_are_not_read(bits):
    codes = torch.full((3,), 2**bits - 1, dtype=torch.uint8)
    packed = actcore.pack_bits(codes, bits)
    unused = 8 * packed.numel() - 3 * bits
    assert packed[-1] == 255 >> unused
    packed[-1] |= 255 << (8 - unused) & 255
    assert same_bits(actcore.unpack_bits(packed, bits, 3), codes)


@pytest.mark.parametrize("bits", range(1, 8))
@pytest.mark.parametrize("numel", [1, 7, 8, 127, 129, 100_003])
def test_a_code_too_large_raises_wherever_it_stands(set_threads, bits, numel):
    """100,003 codes are shared by threads, one of which finds it."""
    set_threads(4)
    for place in {0, numel // 2, numel - 1}:
        for excess in (2**bits, 255):
            codes = codes_of(numel, bits)
            codes[place] = excess
            with pytest.raises(ValueError, match=rf"codes must be below 2\*\*bits = {2**bits}, but one is not"):
                actcore.pack_bits(codes, bits)


def test_any_shape_and_strides_are_packed_in_contiguous_order():
    codes = codes_of(60, 3).view(4, 15)
    assert same_bits(actcore.pack_bits(codes, 3), actcore.pack_bits(codes.reshape(-1), 3))
    assert same_bits(actcore.pack_bits(codes.t(), 3), actcore.pack_bits(codes.t().reshape(-1), 3))


@every_width
def test_misaligned_views(bits):
    memory = codes_of(400, bits)
    for start in range(1, 9):
        codes = memory[start : start + 333]
        packed = actcore.pack_bits(codes, bits)
        assert same_bits(packed, reference.pack_bits(codes, bits))
        moved = torch.cat([packed[:start], packed])[start:]
        assert same_bits(actcore.unpack_bits(moved, bits, 333), codes)
