"""A corrupted or truncated ``Compressed`` raises; nothing is read out of bounds."""

import io
import pickle
from dataclasses import replace

import pytest
import torch

import actcore
from actcore import Layout

from .damage import SaysSound
from .samples import normal

DAMAGED = "it is damaged or truncated: store the tensor again"

X = normal(1000).view(25, 40)
GROUP_AFFINE = actcore.compress(X, actcore.GroupAffine(4))
FLOAT8 = actcore.compress(X, actcore.Float8())
ROWS = actcore.compress(X, actcore.GroupAffineRows((4, 1, 8, 2, 3) * 5, 32))
NARROW = actcore.compress(torch.arange(1000).view(25, 40), actcore.Narrow(0, 1000))
POSITIVE = actcore.compress(X, actcore.Positive())
BIT_MASK = actcore.compress((X > 0).float(), actcore.BitMask())
RAW = actcore.compress(X, actcore.Raw())
STORED = [GROUP_AFFINE, FLOAT8, ROWS, NARROW, POSITIVE, BIT_MASK]
every_form = pytest.mark.parametrize("c", [*STORED, RAW], ids=lambda c: type(c.codec).__name__)


def assert_refused(c, *details):
    """Raises ValueError, and its text has the advice and each of the details."""
    with pytest.raises(ValueError, match=DAMAGED) as error:
        actcore.decompress(c)
    for detail in details:
        assert detail in str(error.value)


def with_part(c, index, part):
    """``c`` with one of its payload tensors replaced."""
    return replace(c, payload=(*c.payload[:index], part, *c.payload[index + 1 :]))


@every_form
def test_each_part_shortened_or_lengthened(c):
    for index, part in enumerate(c.payload):
        flat = part.reshape(-1)
        for other in (flat[:-1], flat[:0], torch.cat([flat, flat[:1]])):
            assert_refused(with_part(c, index, other))


@every_form
def test_parts_missing_or_too_many(c):
    for payload in ((), c.payload[:-1], (*c.payload, c.payload[0])):
        assert_refused(replace(c, payload=payload))


def test_parts_in_the_wrong_order():
    assert_refused(replace(GROUP_AFFINE, payload=GROUP_AFFINE.payload[::-1]))


@every_form
def test_each_part_of_another_dtype(c):
    for index, part in enumerate(c.payload):
        for dtype in (torch.int32, torch.float64, torch.int8):
            assert_refused(with_part(c, index, part.to(dtype)), str(dtype))


def test_the_message_says_what_was_expected_and_found():
    codes, bounds = GROUP_AFFINE.payload
    assert_refused(
        replace(GROUP_AFFINE, payload=(codes[:499], bounds)),
        "the payload of Compressed(GroupAffine(bits=4",
        "must hold [(torch.uint8, 500), (torch.float32, 8)] (dtype, elements)",
        "got [(torch.uint8, 499), (torch.float32, 8)]",
    )
    assert_refused(
        replace(RAW, payload=(X.half(),)),
        "must be one tensor of that shape and dtype, got [((25, 40), torch.float16)]",
    )


def test_parts_on_different_devices():
    """The meta device stands for another: there the operator would return memory that nothing wrote."""
    codes, bounds = GROUP_AFFINE.payload
    for payload in ((codes.to("meta"), bounds), (codes, bounds.to("meta"))):
        assert_refused(replace(GROUP_AFFINE, payload=payload), "must be on one device", "meta", "cpu")


@pytest.mark.parametrize("shape", [(25, 41), (25,), (0, 40), (25, 40, 2), (2**31, 2**31), (2**62, 40)])
@every_form
def test_another_shape(c, shape):
    strides = torch.empty(shape, device="meta").stride() if len(shape) < 2 or shape[0] < 2**31 else (shape[1], 1)
    assert_refused(replace(c, layout=Layout(shape, strides)))


@pytest.mark.parametrize("c", STORED, ids=lambda c: type(c.codec).__name__)
@pytest.mark.parametrize(
    "layout",
    [Layout((-25, -40), (40, 1)), Layout((25, 40), (-40, 1)), Layout((25, 40), (40,)), Layout((1000,), ())],
    ids=["negative sizes", "negative stride", "a stride missing", "no strides"],
)
def test_a_shape_and_strides_that_no_tensor_has(c, layout):
    assert_refused(
        replace(c, layout=layout),
        "layout must have a size and a stride, neither negative, for each dimension",
        repr(layout),
    )


@pytest.mark.parametrize(
    "layout",
    [Layout((0, 2**62), (1, 1)), Layout((2**62,), (0,)), Layout((2, 500), (2**62, 1)), Layout((2**80,), (1,))],
    ids=["beside an empty dimension", "expanded", "stride", "beyond 64 bits"],
)
def test_a_layout_that_no_memory_holds(layout):
    assert_refused(replace(GROUP_AFFINE, layout=layout), "layout must fit in memory", repr(layout))


@pytest.mark.parametrize("number", [1.0, None, "40", torch.tensor(40)], ids=repr)
def test_a_layout_of_other_things_than_numbers(number):
    assert_refused(replace(GROUP_AFFINE, layout=Layout((25, number), (40, 1))), "layout must have a size and a stride")


@pytest.mark.parametrize("layout", [None, (25, 40), ((25, 40), (40, 1))], ids=repr)
def test_a_layout_that_is_none(layout):
    assert_refused(replace(GROUP_AFFINE, layout=layout), "layout must be an actcore.Layout, got")


def test_a_payload_with_gaps():
    codes, bounds = GROUP_AFFINE.payload
    gaps = codes.repeat_interleave(2)[::2]
    assert_refused(replace(GROUP_AFFINE, payload=(gaps, bounds)), "must be contiguous, got strides (2,), (2, 1)")


@every_form
def test_a_payload_of_other_things_than_tensors(c):
    for payload in ((None,), ("", 1), [*c.payload], None):
        assert_refused(replace(c, payload=payload), "the payload must be a tuple of tensors")


def test_a_dtype_that_the_codec_does_not_store():
    mask = POSITIVE.payload
    for codec, payload in ((POSITIVE.codec, mask), (BIT_MASK.codec, mask), (GROUP_AFFINE.codec, GROUP_AFFINE.payload)):
        damaged = replace(GROUP_AFFINE, codec=codec, payload=payload, dtype=torch.complex64)
        assert_refused(damaged, f"{codec!r} stores no tensors of dtype torch.complex64")


def test_values_that_the_dtype_does_not_hold():
    c = actcore.compress(torch.ones(100), actcore.BitMask((0.5, 1)))
    assert_refused(
        replace(c, dtype=torch.int8), "values of BitMask(values=(0.5, 1)) must be exact in torch.int8, got 0.5"
    )


@pytest.mark.parametrize("c", [GROUP_AFFINE, POSITIVE, BIT_MASK], ids=lambda c: type(c.codec).__name__)
def test_a_file_cannot_say_that_it_needs_no_check(c):
    cut = with_part(c, 0, c.payload[0][:1])
    loaded = pickle.loads(pickle.dumps(SaysSound(cut)))
    assert not loaded.sound
    assert_refused(loaded)
    assert c.sound


@pytest.mark.parametrize(
    ("codec", "c"),
    [
        (actcore.GroupAffine(2), GROUP_AFFINE),
        (actcore.GroupAffine(4, 128), GROUP_AFFINE),
        (actcore.Positive(), GROUP_AFFINE),
        (actcore.BitMask(), GROUP_AFFINE),
        (actcore.GroupAffine(4), POSITIVE),
        (actcore.BitMask((0.5, 0.1)), BIT_MASK),
    ],
    ids=repr,
)
def test_a_codec_is_asked_for_what_another_one_stored(codec, c):
    """The form has the other's fields, and is sound for that one."""
    with pytest.raises(ValueError, match=DAMAGED):
        codec.decompress(c)
    assert torch.equal(replace(c.codec).decompress(c), actcore.decompress(c))  # an equal one may


def test_another_tensors_dtype():
    assert_refused(replace(GROUP_AFFINE, dtype=torch.float16), "(torch.float16, 8)")
    assert_refused(replace(FLOAT8, dtype=torch.float16), "(torch.float16, 4)")
    assert_refused(replace(ROWS, dtype=torch.float16), "(torch.float16, 100)")
    assert_refused(
        replace(NARROW, dtype=torch.float32), "Narrow(low=0, high=1000) stores no tensors of dtype torch.float32"
    )
    assert_refused(replace(RAW, dtype=torch.float16))


@pytest.mark.parametrize(
    "codec",
    [
        actcore.GroupAffine(5),
        actcore.GroupAffine(4, 128),
        actcore.Float8(),
        actcore.GroupAffineRows((4,) * 25),
        actcore.Narrow(0, 15),
        actcore.BitMask(),
    ],
    ids=repr,
)
def test_another_codec(codec):
    assert_refused(replace(GROUP_AFFINE, codec=codec), repr(codec))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_file_cut_short_does_not_load(share):
    file = io.BytesIO()
    torch.save(GROUP_AFFINE, file)
    cut = io.BytesIO(file.getvalue()[: int(share * file.tell())])
    with pytest.raises(RuntimeError, match="PytorchStreamReader failed"):
        torch.load(cut, weights_only=True)


def test_any_bytes_decode_to_finite_values_within_the_bounds():
    """Damage inside the codes cannot be told from data, but it stays within each group's bounds."""
    codes, bounds = GROUP_AFFINE.payload
    for byte in (0, 0x5A, 0xFF):
        y = actcore.decompress(replace(GROUP_AFFINE, payload=(torch.full_like(codes, byte), bounds)))
        for group, (low, high) in zip(y.reshape(-1).split(256), bounds.tolist(), strict=True):
            assert group.min() >= low
            assert group.max() <= high


def test_any_float8_codes_decode_to_finite_values_within_the_bounds():
    """The formats' own codes for infinity and NaN among them."""
    codes, bounds = FLOAT8.payload
    for byte in range(256):
        y = actcore.decompress(replace(FLOAT8, payload=(torch.full_like(codes, byte), bounds)))
        for group, bound in zip(y.reshape(-1).split(256), bounds.tolist(), strict=True):
            assert group.abs().max() <= bound


def test_rows_of_another_number():
    for rows in (1, 24, 26):
        codec = actcore.GroupAffineRows((4,) * rows, 32)
        assert_refused(replace(ROWS, codec=codec), f"layout must have {rows} rows, one for each of bits")
