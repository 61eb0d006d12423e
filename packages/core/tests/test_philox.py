"""The noise: Philox4x32-10, keyed by (seed, stream) and counted by position, and nothing of torch's own generators."""

import pytest
import torch

import actcore
from actcore import _native, reference

from .samples import same_bits

ONES = 2**64 - 1


def words(low, high):
    """A 64-bit number from the two 32-bit words that Random123 prints."""
    return low | high << 32


# Random123 (Salmon et al., SC 2011), kat_vectors, "philox4x32 10": counter, key -> result. Our counter is the block's
# number in its low half and the stream in its high half; our key is the seed.
KNOWN_ANSWERS = [
    ((0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES, ONES), ONES, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (words(0x243F6A88, 0x85A308D3), words(0x13198A2E, 0x03707344)),
        words(0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "seed", "expected"), KNOWN_ANSWERS, ids=["zeros", "ones", "pi"])
def test_known_answers(counter, seed, expected):
    block, stream = counter
    assert _native.philox(seed, stream, block) == expected
    signed_block = torch.tensor([block - 2**64 if block >= 2**63 else block])
    assert tuple(reference.philox(seed, stream, signed_block)[0].tolist()) == expected


def test_reference_equals_native_everywhere():
    """At every bit of seed, stream and block, one at a time and together."""
    numbers = [1 << bit for bit in range(0, 63, 3)] + [3, 0x0123_4567_89AB_CDEF, 2**63 - 1]
    for number in numbers:
        for seed, stream, block in ((number, 5, 7), (5, number, 7), (5, 7, number), (number, number, number)):
            expected = reference.philox(seed, stream, torch.tensor([block]))[0].tolist()
            assert list(_native.philox(seed, stream, block)) == expected


@pytest.mark.parametrize("seed", [0, 1, 1 << 40, -1])
@pytest.mark.parametrize("stream", [0, 3, 1 << 40, -(1 << 62)])
def test_element_e_takes_byte_e_of_the_sequence(seed, stream):
    """The operator's choices, foretold from the generator alone: half a step goes up where the byte is above 127."""
    x = torch.full((1000,), 0.5)
    x[::32], x[1::32] = 0.0, 1.0
    y = actcore.decompress(actcore.compress(x, actcore.GroupAffine(1, group_size=32), seed=seed, stream=stream))
    blocks = [_native.philox(seed % 2**64, stream % 2**64, block) for block in range(63)]
    sequence = b"".join(word.to_bytes(4, "little") for block in blocks for word in block)
    foretold = torch.tensor([float(byte >= 128) for byte in sequence[:1000]])
    middle = x == 0.5
    assert torch.equal(y[middle], foretold[middle])


def test_seeds_and_streams_are_64_bits_signed_or_not():
    x = torch.linspace(0, 1, 600)
    codec = actcore.GroupAffine(4)
    for signed, unsigned in ((-1, 2**64 - 1), (-(2**63), 2**63)):
        for argument in ("seed", "stream"):
            one = actcore.compress(x, codec, **{argument: signed})
            other = actcore.compress(x, codec, **{argument: unsigned})
            assert same_bits(one.payload[0], other.payload[0])


def test_same_key_same_bytes_and_another_key_other_bytes():
    x = torch.linspace(0, 1, 600)
    codec = actcore.GroupAffine(4)
    codes = actcore.compress(x, codec, seed=1, stream=2).payload[0]
    assert same_bits(actcore.compress(x, codec, seed=1, stream=2).payload[0], codes)
    for key in ({"seed": 2, "stream": 2}, {"seed": 1, "stream": 3}, {"seed": 2, "stream": 1}, {}):
        assert not same_bits(actcore.compress(x, codec, **key).payload[0], codes)


def test_torchs_generator_is_neither_used_nor_moved():
    x = torch.linspace(0, 1, 600)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = actcore.compress(x, actcore.GroupAffine(4))
    actcore.decompress(first)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert same_bits(actcore.compress(x, actcore.GroupAffine(4)).payload[0], first.payload[0])


def test_nearest_rounding_has_no_noise():
    x = torch.linspace(0, 1, 600)
    codec = actcore.GroupAffine(4, rounding="nearest")
    one, other = (actcore.compress(x, codec, seed=seed, stream=seed) for seed in (0, 1))
    assert same_bits(one.payload[0], other.payload[0])
