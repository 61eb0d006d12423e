"""``Narrow``: integers of a known range, exactly, in the fewest bits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import actcore
from actcore import Narrow, reference

from .samples import INTEGERS, NUMELS, integers, name_of, same_bits

ops = torch.ops.actcore
LEAST, MOST = -(2**63), 2**63 - 1


def ranges_of(dtype):
    """Ranges of every interesting width that the dtype holds, at both ends of it and around zero."""
    info = torch.iinfo(dtype)
    for bits in range(info.bits + 1):
        span = 2**bits - 1
        yield info.min, info.min + span
        yield info.max - span, info.max
        if bits:
            yield info.min + 1, info.min + 1 + span // 2 + (bits < info.bits)
    yield max(info.min, -3), 4


@pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)
def test_every_width_as_the_reference_and_back(dtype):
    for low, high in ranges_of(dtype):
        for numel in (33, 257):
            x = integers(numel, low, high, dtype)
            packed, misfit = ops.narrow_compress(x, low, high)
            expected, _ = reference.narrow_compress(x, low, high)
            assert misfit.item() == 0, (low, high)
            assert same_bits(packed, expected), (low, high)
            assert same_bits(ops.narrow_decompress(packed, numel, dtype, low, high), x), (low, high)


@pytest.mark.parametrize("numel", NUMELS)
def test_every_length(numel):
    for dtype, low, high in (
        (torch.int64, -5, 2702),
        (torch.int16, 0, 9),
        (torch.int32, -(2**30), 2**30),
        (torch.uint8, 7, 7),
    ):
        x = integers(numel, low, high, dtype)
        packed, _ = ops.narrow_compress(x, low, high)
        assert same_bits(packed, reference.narrow_compress(x, low, high)[0])
        assert same_bits(ops.narrow_decompress(packed, numel, dtype, low, high), x)


@settings(deadline=None)
@given(st.data())
def test_any_integers_come_back(data):
    low, high = sorted(data.draw(st.tuples(st.integers(LEAST, MOST), st.integers(LEAST, MOST))))
    x = torch.tensor(data.draw(st.lists(st.integers(low, high), max_size=100)), dtype=torch.int64)
    c = actcore.compress(x, Narrow(low, high))
    assert same_bits(actcore.decompress(c), x)
    assert c.nbytes == min(-(-(high - low).bit_length() * len(x) // 8), x.nbytes)


def test_a_bool_takes_one_bit_and_a_constant_none():
    x = integers(1000, 0, 1).bool()
    c = actcore.compress(x, Narrow(0, 1))
    assert (c.nbytes, c.codec) == (125, Narrow(0, 1))
    assert same_bits(c.payload[0], actcore.compress(x, actcore.BitMask()).payload[0])
    assert same_bits(c.decompress(), x)
    constant = torch.full((10, 10), -7)
    c = actcore.compress(constant, Narrow(-7, -7))
    assert (c.nbytes, c.device.type) == (0, "cpu")
    assert same_bits(c.decompress(), constant)


def test_indices_of_a_graph():
    """2,708 nodes: 12 bits instead of 64."""
    edges = integers(2 * 10556, 0, 2707).view(2, 10556)
    c = actcore.compress(edges, Narrow(0, 2707))
    assert c.nbytes == edges.numel() * 12 // 8
    assert same_bits(c.decompress(), edges)


@pytest.mark.parametrize("dtype", [torch.bool, *INTEGERS], ids=name_of)
def test_the_range_is_cut_to_what_the_dtype_holds(dtype):
    """A range wider than the dtype costs no more than the dtype, which is kept as it is then."""
    low, high = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    x = integers(100, low, high, dtype)
    c = actcore.compress(x, Narrow(LEAST, MOST))
    assert c.nbytes == (13 if dtype == torch.bool else x.nbytes)
    assert same_bits(c.decompress(), x)
    if dtype == torch.uint8:
        half = actcore.compress(x // 4, Narrow(-1000, 63))
        assert half.nbytes == 75  # 6 bits: 0 to 63
        assert same_bits(half.decompress(), x // 4)


@pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)
@pytest.mark.parametrize("numel", [1, 7, 129, 100_003])
def test_an_integer_out_of_the_range_raises_wherever_it_stands(set_threads, dtype, numel):
    set_threads(4)
    low, high = 10, 20
    x = torch.full((numel,), 15, dtype=dtype)
    for place in {0, numel // 2, numel - 1}:
        for strange in (low - 1, high + 1, torch.iinfo(dtype).min, torch.iinfo(dtype).max):
            wrong = x.clone()
            wrong[place] = strange
            with pytest.raises(ValueError, match=r"Narrow\(low=10, high=20\) stores values from low to high, but an"):
                actcore.compress(wrong, Narrow(low, high))


def test_the_check_does_not_overflow():
    """Offsets modulo 2**64: from -2**63 on, every int64 has one, and only those up to the span are in the range."""
    for codec, strange in (
        (Narrow(LEAST, LEAST + 10), (LEAST + 11, -1, 0, MOST)),
        (Narrow(MOST - 10, MOST), (LEAST, -1, 0, MOST - 11)),
        (Narrow(LEAST, MOST - 1), (MOST,)),
        (Narrow(LEAST + 1, MOST), (LEAST,)),
        (Narrow(-1, 2**62), (-2, LEAST, MOST)),
    ):
        ends = torch.tensor([codec.low, codec.high] * 8)
        assert same_bits(actcore.decompress(actcore.compress(ends, codec)), ends)
        for value in strange:
            with pytest.raises(ValueError, match="stores values from low to high"):
                actcore.compress(torch.tensor([codec.low, value]), codec)


def test_what_gains_nothing_is_kept_as_it_is_but_checked():
    x = integers(100, 0, 200, torch.uint8)
    c = actcore.compress(x, Narrow(0, 200))
    assert c.codec == actcore.Raw()
    assert c.payload[0].data_ptr() != x.data_ptr()
    with pytest.raises(ValueError, match="stores values from low to high"):
        actcore.compress(x, Narrow(0, 199))


def test_damaged_bytes_decode_within_the_range():
    """An index that came back damaged must not point out of what it indexes."""
    for low, high in ((0, 9), (-5, 300), (0, 2**33)):
        c = actcore.compress(integers(100, low, high), Narrow(low, high))
        for byte in (0x5A, 0xFF):
            c.payload[0].fill_(byte)
            y = c.decompress()
            assert y.min() >= low
            assert y.max() <= high


def test_any_number_of_threads(set_threads):
    x = integers(200_003, -70_000, 70_000)
    packed = []
    for threads in (1, 2, 4):
        set_threads(threads)
        c = actcore.compress(x, Narrow(-70_000, 70_000))
        packed.append(c.payload[0])
        assert same_bits(c.decompress(), x)
    assert same_bits(packed[0], packed[1])
    assert same_bits(packed[0], packed[2])
