"""Stored forms, and kinds of damage to them, as hypothesis draws them."""

import copy
import dataclasses
import itertools

import torch
from hypothesis import strategies as st
from torch import Tensor

import actcore
from actcore import Compressed, Layout

from .samples import DTYPES, NUMELS, as_bytes, normal

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
