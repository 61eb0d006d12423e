"""Damaged stored forms, made at random: each raises what it should or decompresses, and no memory is touched wrongly.

Whether memory is touched wrongly is seen by AddressSanitizer: `nox -s sanitize` runs this with kernels built for it,
and with many more examples. ACTCORE_FUZZ_EXAMPLES says how many.
"""

import copy
import dataclasses
import itertools
import os

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import actcore
from actcore import Compressed, Layout
from actcore.ops import packed_bytes

from .samples import DTYPES, NUMELS, as_bytes, normal

NO_MEMORY = "DefaultCPUAllocator: "
DAMAGED = "it is damaged or truncated: store the tensor again"

EXAMPLES = int(os.environ.get("ACTCORE_FUZZ_EXAMPLES", "200"))
# The same examples in every run of the normal suite; new ones each time where there are many.
fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="ACTCORE_FUZZ_EXAMPLES" not in os.environ,
    database=None,
    suppress_health_check=list(HealthCheck),
)

# Numbers that a damaged field may hold: around zero, powers of two and the ends of int32 and int64.
NUMBERS = st.one_of(
    st.integers(-4, 70),
    st.sampled_from(
        [sign * 2**power + near for sign, power, near in itertools.product((1, -1), (8, 31, 61, 63, 64), (-1, 0, 1))]
    ),
)
THINGS = st.one_of(NUMBERS, st.none(), st.booleans(), st.floats(), st.text(max_size=3), st.just((0, 1)))
STORED_DTYPES = st.sampled_from(
    [*DTYPES, torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.complex64]
)


def as_it_is(x: Tensor) -> Tensor:
    return x


def as_mask(x: Tensor) -> Tensor:
    return (x > 0).to(x.dtype)


def as_integers(x: Tensor) -> Tensor:
    return (x.abs() * 2).clamp(max=7).long()


class RowBits:
    """``GroupAffineRows`` with a width for each of the tensor's rows, which are known when it is given one."""

    def compress(self, tensor: Tensor) -> Compressed:
        rows = tensor.shape[0] if tensor.dim() else 0
        codec = actcore.GroupAffineRows(tuple(1 + row % 8 for row in range(rows)), 32)
        return actcore.compress(tensor if tensor.dim() else tensor.new_ones(0), codec)


# The codecs, and what makes a tensor that each can store out of any. A new codec needs a line here.
FORMS = st.one_of(
    st.tuples(
        st.builds(
            actcore.GroupAffine,
            st.integers(1, 8),
            st.sampled_from([32, 64, 96, 256]),
            st.sampled_from(["stochastic", "nearest"]),
        ),
        st.just(as_it_is),
    ),
    st.tuples(st.just(actcore.Positive()), st.just(as_it_is)),
    st.tuples(st.just(actcore.BitMask()), st.just(as_mask)),
    st.tuples(st.just(actcore.Raw()), st.just(as_it_is)),
    st.tuples(st.builds(actcore.Float8, st.sampled_from(["e4m3", "e5m2"])), st.just(as_it_is)),
    st.tuples(st.builds(actcore.Narrow, st.just(-3), st.sampled_from([7, 4000])), st.just(as_integers)),
    st.tuples(st.just(RowBits()), st.just(as_it_is)),
)
LAYOUTS = {
    "flat": lambda x: x,
    "rows": lambda x: x.view(-1, 1).expand(-1, 3),
    "every second": lambda x: x[::2],
    "transposed": lambda x: x[: x.numel() // 4 * 4].view(4, -1).t(),
    "scalar": lambda x: x.new_ones(()),
}


@st.composite
def stored(draw: st.DrawFn) -> Compressed:
    """A stored form as a codec makes it."""
    codec, valid = draw(FORMS)
    x = normal(draw(st.sampled_from(NUMELS)), draw(st.sampled_from(DTYPES)))
    tensor = LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))](valid(x))
    return codec.compress(tensor) if isinstance(codec, RowBits) else actcore.compress(tensor, codec)


def with_part(draw, c, change):
    """``c`` with one part of its payload changed, if it has one."""
    if not c.payload:
        return c
    index = draw(st.integers(0, len(c.payload) - 1))
    return dataclasses.replace(c, payload=(*c.payload[:index], change(c.payload[index]), *c.payload[index + 1 :]))


def shorter(draw, c):
    return with_part(draw, c, lambda part: part.reshape(-1)[draw(st.integers(0, 9)) :].clone())


def longer(draw, c):
    return with_part(
        draw, c, lambda part: torch.cat([part.reshape(-1)] + draw(st.integers(1, 3)) * [part.reshape(-1)[:7]])
    )


def with_gaps(draw, c):
    return with_part(draw, c, lambda part: part.repeat_interleave(2, 0)[::2] if part.dim() else part)


def repeated(draw, c):
    return with_part(draw, c, lambda part: part.reshape(-1)[:1].expand(part.numel()))


def of_another_dtype(draw, c):
    return with_part(draw, c, lambda part: part.to(draw(STORED_DTYPES)))


def seen_as_another_dtype(draw, c):
    other = draw(st.sampled_from([torch.int8, torch.uint8]))
    return with_part(draw, c, lambda part: as_bytes(part).view(other))


def no_tensor(draw, c):
    return with_part(draw, c, lambda part: draw(THINGS))


def bits_flipped(draw, c):
    def flip(part):
        data = bytearray(as_bytes(part).numpy().tobytes())
        for _ in range(draw(st.integers(1, 4)) if data else 0):
            data[draw(st.integers(0, len(data) - 1))] ^= draw(st.integers(1, 255))
        return torch.frombuffer(data, dtype=part.dtype).view(part.shape).clone() if data else part

    return with_part(draw, c, flip)


def parts_shuffled(draw, c):
    parts = draw(st.lists(st.sampled_from(c.payload), max_size=3)) if c.payload else []
    return dataclasses.replace(c, payload=tuple(parts))


def another_size_or_stride(draw, c):
    numbers = {"shape": list(c.layout.shape), "strides": list(c.layout.strides)}
    field = numbers[draw(st.sampled_from(sorted(numbers)))]
    change = draw(st.sampled_from(["replace", "insert", "remove"]))
    place = draw(st.integers(0, max(0, len(field) - 1)))
    if change != "insert" and field:
        field.pop(place)
    if change != "remove":
        field.insert(place, draw(st.one_of(NUMBERS, THINGS)))
    return dataclasses.replace(c, layout=Layout(*map(tuple, numbers.values())))


def another_dtype(draw, c):
    return dataclasses.replace(c, dtype=draw(STORED_DTYPES))


def another_codec(draw, c):
    return dataclasses.replace(c, codec=draw(FORMS.filter(lambda form: not isinstance(form[0], RowBits)))[0])


def another_field(draw, c):
    """Set as torch.load sets it: without the constructor's checks."""
    fields = [field.name for field in dataclasses.fields(c.codec)]
    if not fields:
        return c
    codec = copy.copy(c.codec)
    object.__setattr__(codec, draw(st.sampled_from(fields)), draw(THINGS))
    return dataclasses.replace(c, codec=codec)


DAMAGES = (
    shorter,
    longer,
    with_gaps,
    repeated,
    of_another_dtype,
    seen_as_another_dtype,
    no_tensor,
    bits_flipped,
    parts_shuffled,
    another_size_or_stride,
    another_dtype,
    another_codec,
    another_field,
)


@st.composite
def damaged(draw: st.DrawFn) -> Compressed:
    """A stored form with one to three kinds of damage."""
    c = draw(stored())
    for damage in draw(st.lists(st.sampled_from(DAMAGES), min_size=1, max_size=3)):
        if all(isinstance(part, Tensor) and part.layout is torch.strided for part in c.payload):
            c = damage(draw, c)
    return c


def result_of(function, *arguments):
    """What it returns, or the error that it raises."""
    try:
        return function(*arguments)
    except (ValueError, RuntimeError) as error:
        return error


def read(tensor: Tensor) -> None:
    """Reads every element, so that one outside of its memory is found."""
    distinct = Layout.of(tensor).distinct_shape
    tensor.as_strided(distinct, tensor.stride()).clone()


@fuzz
@given(damaged())
def test_a_damaged_form_is_refused_or_decompresses(c):
    y = result_of(actcore.decompress, c)
    if isinstance(y, ValueError):
        assert DAMAGED in str(y)
    elif isinstance(y, RuntimeError):  # strides that are possible, but not on this machine
        assert NO_MEMORY in str(y)
    else:
        assert (y.shape, y.dtype, y.device) == (c.shape, c.dtype, c.device)
        read(y)


@fuzz
@given(stored())
def test_an_undamaged_form_decompresses(c):
    """The damage is what the other test refuses."""
    y = actcore.decompress(c)
    assert (y.shape, y.dtype) == (c.shape, c.dtype)
    read(y)


def tensors(*dtypes):
    """Small tensors, dense or not, of these dtypes and at times of another."""

    def make(numel, dtype, step, shape_of_bounds):
        x = torch.arange(numel * step).to(dtype)[::step]
        return x.view(-1, 2) if shape_of_bounds and numel % 2 == 0 else x

    kinds = st.one_of(st.sampled_from(dtypes), st.sampled_from(dtypes), STORED_DTYPES)
    numels = st.one_of(st.integers(0, 40), st.sampled_from(NUMELS))
    return st.builds(make, numels, kinds, st.sampled_from([1, 1, 1, 2]), st.booleans())


INT64 = st.one_of(st.integers(-(2**63), 2**63 - 1), NUMBERS.filter(lambda number: -(2**63) <= number < 2**63))
WIDTHS = st.one_of(st.integers(1, 8), INT64)
GROUP_SIZES = st.one_of(st.sampled_from([32, 64, 256]), INT64)
VALUES = st.one_of(st.sampled_from([0.0, 1.0]), st.floats())
FORMATS = st.sampled_from([torch.float8_e4m3fn, torch.float8_e5m2, torch.float32])
KEYS = tensors(torch.int64)
FLOATS, BYTES = tensors(*DTYPES), tensors(torch.uint8)

# What each operator takes, right or wrong. A new operator needs a line here.
ARGUMENTS = {
    "group_affine_compress": (FLOATS, WIDTHS, GROUP_SIZES, st.booleans(), INT64, INT64),
    "group_affine_decompress": (BYTES, FLOATS, INT64, WIDTHS, GROUP_SIZES),
    "group_affine_compress.tensor": (FLOATS, WIDTHS, GROUP_SIZES, st.booleans(), KEYS, KEYS),
    "group_affine_rows_compress": (FLOATS, BYTES, INT64, GROUP_SIZES, st.booleans(), INT64, INT64),
    "group_affine_rows_compress.tensor": (FLOATS, BYTES, INT64, GROUP_SIZES, st.booleans(), KEYS, KEYS),
    "group_affine_rows_decompress": (BYTES, FLOATS, BYTES, INT64, GROUP_SIZES),
    "float8_compress": (FLOATS, FORMATS, GROUP_SIZES, st.booleans(), INT64, INT64),
    "float8_compress.tensor": (FLOATS, FORMATS, GROUP_SIZES, st.booleans(), KEYS, KEYS),
    "float8_decompress": (BYTES, FLOATS, FORMATS, GROUP_SIZES),
    "narrow_compress": (tensors(torch.int64, torch.uint8), INT64, INT64),
    "narrow_decompress": (BYTES, INT64, STORED_DTYPES, INT64, INT64),
    "pack_bits": (BYTES, WIDTHS),
    "unpack_bits": (BYTES, WIDTHS, INT64),
    "bit_mask_compress": (st.one_of(FLOATS, BYTES), VALUES, VALUES),
    "bit_mask_decompress": (BYTES, INT64, STORED_DTYPES, VALUES, VALUES),
    "positive_mask": (FLOATS,),
}


def overload_of(operator):
    name, _, overload = operator.partition(".")
    return getattr(getattr(torch.ops.actcore, name), overload or "default")


@pytest.mark.parametrize("operator", ARGUMENTS)
def test_an_operator_given_anything_raises_or_returns(operator):
    @settings(fuzz, max_examples=max(10, EXAMPLES // 4))
    @given(st.tuples(*ARGUMENTS[operator]))
    def run(arguments):
        outputs = result_of(overload_of(operator), *arguments)
        if isinstance(outputs, RuntimeError):
            assert f"actcore::{operator.partition('.')[0]}: " in str(outputs) or NO_MEMORY in str(outputs)
            return
        for output in outputs if isinstance(outputs, tuple) else (outputs,):
            read(output)

    run()


@fuzz
@given(st.integers(1, 8), st.sampled_from([32, 64, 256]), st.sampled_from(NUMELS), st.sampled_from(DTYPES), st.data())
def test_group_affine_decompresses_any_bytes(bits, group_size, numel, dtype, data):
    """Payloads of the right size and any content: codes and bounds that were never stored together."""
    groups = -(-numel // group_size)
    size = packed_bytes(numel, bits)
    content = data.draw(st.binary(min_size=1, max_size=64))
    codes = torch.tensor(list(content), dtype=torch.uint8).repeat(size // len(content) + 1)[:size].clone()
    raw = torch.tensor(list(content[::-1]), dtype=torch.uint8).repeat(2 * groups * dtype.itemsize)
    bounds = raw[: 2 * groups * dtype.itemsize].clone().view(dtype).view(groups, 2)
    y = torch.ops.actcore.group_affine_decompress(codes, bounds, numel, bits, group_size)
    assert (y.shape, y.dtype) == ((numel,), dtype)
    read(y)


@pytest.mark.parametrize("value", [0, -32, 33, 2**62, "256", None], ids=repr)
def test_a_damaged_group_size(value):
    """group_size=0 was a ZeroDivisionError."""
    c = actcore.compress(normal(1000), actcore.GroupAffine(4))
    codec = copy.copy(c.codec)
    object.__setattr__(codec, "group_size", value)
    with pytest.raises(ValueError, match=DAMAGED) as error:
        actcore.decompress(dataclasses.replace(c, codec=codec))
    assert f"group_size={value!r}" in str(error.value)
    assert "group_size must be" in str(error.value)


def test_every_operator_and_codec_is_fuzzed():
    assert set(ARGUMENTS) == set(actcore.ops.OPERATORS)
