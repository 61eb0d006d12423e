"""``Formula``: how backward recomputes a tensor from others that are stored, and what autograd holds in its place."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from actcore import BitMask, GroupAffine, Kept, Layout, Narrow, Raw
from integrations._torch import DisableAutocast, DisableTorchFunction
from integrations.runtime.formulas.operators import Again
from integrations.storing.regions import Beside, Region, View, inner

EXACT = 64
"""Bits of what is as it was."""


class Place(NamedTuple):
    """Where a tensor's elements are in its storage."""

    layout: Layout
    offset: int

    @classmethod
    def of(cls, tensor: Tensor) -> Place:
        return cls(Layout.of(tensor), int(tensor.storage_offset()))


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """An operand of which a form is stored, as long as that is there."""

    region: weakref.ref[Region]
    place: Place


@dataclass(frozen=True, slots=True, eq=False)
class There:
    """An operand that somebody keeps alive, such as a parameter."""

    tensor: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """An operand that another formula makes: what is in that place of its result's storage."""

    formula: Formula
    place: Place


Operand = Stored | There | Made


@dataclass(slots=True, eq=False, weakref_slot=True)
class Formula:
    """A call of a cheap function, in which operands stand for tensors.

    Attributes:
        call: the function and its arguments.
        place, dtype, version: of its result, as it was when it had just been made.
        exactly: whether operands have to be exact.
        autocast: device and dtype of the one that the call ran under; ``None`` for none.
        cost: elements that it and the formulas of its operands make.
        name: of the operator.
        bound: what it is for those who have saved its result, while one of them has.
    """

    call: Again
    place: Place
    dtype: torch.dtype
    version: int
    exactly: bool
    autocast: tuple[str, torch.dtype] | None
    cost: int
    name: str
    bound: weakref.ref[Bound] | None = None

    def operands(self) -> Iterator[Operand]:
        """What it reads."""
        yield from _operands((self.call.args, tuple(self.call.kwargs.values())))


class Bound:
    """A formula whose operands are held, so that it can be computed in backward.

    Attributes:
        bits: the fewest of an operand's elements.
        waiting: saved tensors that backward has not read.
        lent: the result, while others who have saved it come right after one who has read it, and its version.
    """

    __slots__ = ("__weakref__", "_call", "bits", "formula", "lent", "waiting")

    def __init__(self, formula: Formula, call: Again, bits: int) -> None:
        self.formula, self._call, self.bits = formula, call, bits
        self.waiting = 0
        self.lent: tuple[Tensor, int, Any] | None = None

    def compute(self) -> Tensor:
        """The result, laid out as it was."""
        formula, (function, args, kwargs) = self.formula, self._call
        with torch.no_grad(), DisableTorchFunction(), _under(formula.autocast):
            result: Tensor = function(*map(_resolved, args), **{name: _resolved(one) for name, one in kwargs.items()})
            shape, strides = formula.place.layout
            if result.stride() != strides or result.dtype != formula.dtype:
                laid = torch.empty_strided(shape, strides, dtype=formula.dtype, device=result.device)
                return laid.copy_(result)
            return result


class LastComputed:
    """The formula whose result is lent: one tensor more than autograd itself holds, at most."""

    __slots__ = ("_bound",)

    def __init__(self) -> None:
        self._bound: weakref.ref[Bound] | None = None

    def result_of(self, bound: Bound) -> Tensor:
        """Its result, that of who has read it last if nothing else was computed or written to it since."""
        lent = bound.lent
        if lent is None or lent[0]._version != lent[1] or lent[2] != _stream_of(lent[0]):
            self._let_go()
            result = bound.compute()
            lent = (result, result._version, _stream_of(result))
        if bound.waiting > 0:
            bound.lent, self._bound = lent, weakref.ref(bound)
        else:
            bound.lent = None
        return lent[0]

    def _let_go(self) -> None:
        last = None if self._bound is None else self._bound()
        if last is not None:
            last.lent = None
        self._bound = None


class Recomputed:
    """What autograd holds in the place of a tensor that a formula makes: a view of the result."""

    __slots__ = ("_bound", "_last", "_place", "_waits")

    def __init__(self, bound: Bound, place: Place, last: LastComputed) -> None:
        self._bound, self._place, self._last = bound, place, last
        self._waits = True
        bound.waiting += 1

    def unpack(self) -> Tensor:
        """The tensor."""
        if self._waits:
            self._waits = False
            self._bound.waiting -= 1
        return view_of(self._last.result_of(self._bound), self._bound.formula, self._place)


def bind(formula: Formula, bits: int) -> Bound | None:
    """A formula with its operands; ``None`` where one is stored no more, or in fewer bits than are asked for."""
    bound = None if formula.bound is None else formula.bound()
    if bound is None:
        found: list[int] = []
        try:
            call = Again(
                formula.call.function,
                tuple(_held(one, found) for one in formula.call.args),
                {name: _held(one, found) for name, one in formula.call.kwargs.items()},
            )
        except _GoneError:
            return None
        bound = Bound(formula, call, min(found, default=EXACT))
        if formula.exactly and bound.bits < EXACT:
            return None
        formula.bound = weakref.ref(bound)
    return bound if bound.bits >= bits else None


def view_of(result: Tensor, formula: Formula, place: Place) -> Tensor:
    """What is in a place of the storage of a formula's result, of the result."""
    if place == formula.place:
        return result
    shape, strides = place.layout
    return result.as_strided(shape, strides, result.storage_offset() + place.offset - formula.place.offset)


def mapped(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """A value in which a function has been applied to each tensor, in lists and tuples, too."""
    if isinstance(value, Tensor):
        return function(value)
    if type(value) in (list, tuple):
        return type(value)(mapped(item, function) for item in value)
    return value


class _GoneError(Exception):
    """An operand is stored no more."""


@dataclass(frozen=True, slots=True, eq=False)
class _Inner:
    """In the place of an operand that another formula makes."""

    bound: Bound
    place: Place

    def unpack(self) -> Tensor:
        return view_of(self.bound.compute(), self.bound.formula, self.place)


def _held(value: Any, bits: list[int]) -> Any:
    """A value with what holds each operand in its place; notes the bits of each."""
    if isinstance(value, Stored):
        return _stored(value, bits)
    if isinstance(value, There):
        bits.append(EXACT)
        return Kept.of(value.tensor)
    if isinstance(value, Made):
        bound = bind(value.formula, 1)
        if bound is None:
            raise _GoneError
        bits.append(bound.bits)
        return _Inner(bound, value.place)
    if type(value) in (list, tuple):
        return type(value)(_held(item, bits) for item in value)
    return value


def _stored(operand: Stored, bits: list[int]) -> Kept | Beside:
    region = operand.region()
    if region is None or (region.value is None and region.kept is None):
        raise _GoneError
    bits.append(bits_of(region))
    return View(region, *operand.place, sign=False).beside()


def bits_of(region: Region) -> int:
    """Bits of each element of a region."""
    if region.kept is not None or region.value is None:
        return EXACT
    codec = inner(region.value.codec)
    if isinstance(codec, GroupAffine):
        return codec.bits
    return EXACT if isinstance(codec, (Raw, BitMask, Narrow)) else 0  # what a user's codec restores is not known


def _resolved(value: Any) -> Any:
    if isinstance(value, (Kept, Beside, _Inner)):
        return value.unpack()
    if type(value) in (list, tuple):
        return type(value)(_resolved(item) for item in value)
    return value


def _operands(values: Any) -> Iterator[Operand]:
    for value in values:
        if isinstance(value, (Stored, There, Made)):
            yield value
        elif type(value) in (list, tuple):
            yield from _operands(value)


def _under(autocast: tuple[str, torch.dtype] | None) -> AbstractContextManager[Any]:
    """The autocast that a call ran under, or none, wherever backward is called."""
    return DisableAutocast() if autocast is None else torch.autocast(*autocast)


def _stream_of(tensor: Tensor) -> Any:
    """The stream that a tensor would be used on: one that was computed on another may not be there yet."""
    real = tensor.is_cuda and torch.cuda.is_initialized()
    return torch.cuda.current_stream(tensor.device) if real else None
