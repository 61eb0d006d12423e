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
from actcore.replay import restore
from integrations._utils.torch_internals import DisableAutocast, DisableTorchFunction
from integrations.runtime.formulas.operators import Again
from integrations.tracing.double_backward import DoubleBackward
from integrations.tracing.storage.forms import Part, Wrapper
from integrations.tracing.storage.regions import Beside, Region, View, inner, used_on
from integrations.tracing.tensors import find_local

EXACT = 64
"""The bits of an operand that is exact."""


class Place(NamedTuple):
    """Where a tensor's elements lie in its storage."""

    layout: Layout
    offset: int

    @classmethod
    def of(cls, tensor: Tensor) -> Place:
        return cls(Layout.of(tensor), int(tensor.storage_offset()))

    def holds(self, other: Place) -> bool:
        """Whether all elements at another place of the storage lie between the first and the last of this one."""
        return other == self or (self.offset <= other.offset and other._end <= self._end)

    @property
    def _end(self) -> int:
        shape, strides = self.layout
        return self.offset + sum((size - 1) * step for size, step in zip(shape, strides, strict=True)) + 1


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """An operand that is stored, while the stored form lives."""

    region: weakref.ref[Region]
    place: Place


@dataclass(frozen=True, slots=True, eq=False)
class There:
    """An operand that is there: a parameter, or a copy of what is small."""

    kept: Kept


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """An operand that another formula recomputes: a place in the storage of that formula's result."""

    formula: Formula
    place: Place


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """An operand whose elements are in another tensor: a DTensor, whose elements are in this rank's part, or the result
    of a collective. A plain tensor that shares the memory of such a part is one, too.

    Attributes:
        part: the operand that has the elements.
        wrapper: makes the DTensor; ``None`` for others, which are replaced by their elements.
    """

    part: Stored | Made
    wrapper: Wrapper | None


Operand = Stored | There | Made | Whole


@dataclass(slots=True, eq=False)
class Noted:
    """A result that a forward has noted.

    Attributes:
        function: which has made it.
        used: whether something that was saved is recomputed by its formula.
    """

    function: Callable[..., Any]
    used: bool = False

    def was_useless(self, function: Callable[..., Any]) -> bool:
        """Whether it was of the same function, and of no use."""
        return self.function is function and not self.used


@dataclass(slots=True, eq=False, weakref_slot=True)
class Formula:
    """A call of a cheap function whose tensor arguments are replaced by operands.

    Attributes:
        call: the function and its arguments.
        place, dtype, version: of the result, as it was when it had just been made; of a DTensor, of this rank's part.
        exactly: whether operands have to be exact.
        autocast: device and dtype of the autocast that the call ran under; ``None`` for none.
        cost: elements that the formula and those of its operands make.
        gain: the factor by which an error of what is stored may be amplified; infinite where it is not known.
        names: of the operators, that of the formula first, and then of those that make its operands.
        bound: the formula with its operands, for the tensors that are saved of its result, while one of them lives.
        noted: is told that the formula is of use; ``None`` where nobody is.
    """

    call: Again
    place: Place
    dtype: torch.dtype
    version: int
    exactly: bool
    autocast: tuple[str, torch.dtype] | None
    cost: int
    gain: float
    names: tuple[str, ...]
    bound: weakref.ref[Bound] | None = None
    noted: Noted | None = None

    def operands(self) -> Iterator[Operand]:
        """The operands that the formula reads."""
        yield from _operands((self.call.args, tuple(self.call.kwargs.values())))


class Bound:
    """A formula whose operands are held, so that backward can compute it. Of a DTensor it computes this rank's part.

    Attributes:
        bits: the least bits of an operand's elements.
        waiting: how many saved tensors backward has not read.
        lent: the result and its version, kept for further saved tensors that are read right after another one.
    """

    __slots__ = ("__weakref__", "_call", "bits", "formula", "lent", "waiting")

    def __init__(self, formula: Formula, call: Again, bits: int) -> None:
        self.formula, self._call, self.bits = formula, call, bits
        self.waiting = 0
        self.lent: tuple[Tensor, int, Any] | None = None

    def compute(self) -> Tensor:
        """The result, laid out as it was in the forward."""
        formula, (function, args, kwargs) = self.formula, self._call
        with torch.no_grad(), DisableTorchFunction(), _under(formula.autocast):
            reader = formula.names[0]
            given = _resolved(args, reader)
            named = {key: _resolved(one, reader) for key, one in kwargs.items()} if kwargs else {}
            result: Tensor = function(*given, **named)
            part = find_local(result)
            result = result if part is None else part
            shape, strides = formula.place.layout
            if result.stride() != strides or result.dtype != formula.dtype:
                laid = torch.empty_strided(shape, strides, dtype=formula.dtype, device=result.device)
                return laid.copy_(result)
            return result


class LastComputed:
    """The formula whose result is lent. At most one tensor is alive beyond those that autograd holds.

    Attributes:
        double: is notified of a backward with ``create_graph=True``; ``None`` for none.
    """

    __slots__ = ("_bound", "double")

    def __init__(self, double: DoubleBackward | None) -> None:
        self._bound: weakref.ref[Bound] | None = None
        self.double = double

    def result_of(self, bound: Bound) -> Tensor:
        """The formula's result. It is the lent one if nothing else was computed since, and nothing was written to
        it."""
        lent = bound.lent
        if lent is None or lent[0]._version != lent[1] or lent[2] != used_on(lent[0]):
            self._let_go()
            result = bound.compute()
            lent = (result, result._version, used_on(result))
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
    """What autograd holds in the place of a tensor that a formula recomputes: a view of the formula's result.

    Attributes:
        bound: the formula.
    """

    __slots__ = ("_last", "_place", "_waits", "bound")

    def __init__(self, bound: Bound, place: Place, last: LastComputed) -> None:
        self.bound, self._place, self._last = bound, place, last
        self._waits = True
        bound.waiting += 1

    @property
    def bits(self) -> int:
        """The fewest bits of the tensors from which it is recomputed."""
        return self.bound.bits

    @property
    def double(self) -> DoubleBackward | None:
        """The object to notify of a backward with ``create_graph=True``."""
        return self._last.double

    def unpack(self) -> Tensor:
        """The tensor."""
        if self._waits:
            self._waits = False
            self.bound.waiting -= 1
        return get_view(self._last.result_of(self.bound), self.bound.formula, self._place)


def bind(formula: Formula, bits: int) -> Bound | None:
    """The formula with its operands held; ``None`` if one is not stored any more, or in fewer bits than required."""
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
        if formula.noted is not None:
            formula.noted.used = True
    return bound if bound.bits >= bits else None


def get_view(result: Tensor, formula: Formula, place: Place) -> Tensor:
    """The view at a place of the storage of a formula's result."""
    if place == formula.place:
        return result
    shape, strides = place.layout
    return result.as_strided(shape, strides, result.storage_offset() + place.offset - formula.place.offset)


def mapped(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """A value with a function applied to each tensor in it, in lists and tuples, too."""
    if isinstance(value, Tensor):
        return function(value)
    if type(value) in (list, tuple):
        return type(value)(mapped(item, function) for item in value)
    return value


class _GoneError(Exception):
    """An operand is not stored any more."""


@dataclass(frozen=True, slots=True, eq=False)
class _Inner:
    """Replaces an operand that another formula recomputes."""

    bound: Bound
    place: Place

    def unpack(self) -> Tensor:
        return get_view(self.bound.compute(), self.bound.formula, self.place)


def _held(value: Any, bits: list[int]) -> Any:
    """A value in which each operand is replaced by what holds it. Notes the bits of each."""
    if isinstance(value, Stored):
        return _stored(value, bits)
    if isinstance(value, There):
        if value.kept.tensor._version != value.kept.version:
            raise _GoneError
        bits.append(EXACT)
        return value.kept
    if isinstance(value, Made):
        bound = bind(value.formula, 1)
        if bound is None:
            raise _GoneError
        bits.append(bound.bits)
        return _Inner(bound, value.place)
    if isinstance(value, Whole):
        region = value.part.region() if isinstance(value.part, Stored) else None
        if region is not None and region.kept is not None:
            raise _GoneError  # the version of a part does not tell whether the DTensor was changed
        held = _held(value.part, bits)
        return held if value.wrapper is None else Part(held, value.wrapper)
    if type(value) in (list, tuple):
        return type(value)(_held(item, bits) for item in value)
    return value


def _stored(operand: Stored, bits: list[int]) -> Kept | Beside:
    region = operand.region()
    if region is None or (region.value is None and region.kept is None):
        raise _GoneError
    bits.append(get_bits(region))
    return View(region, *operand.place, sign=False).beside()


def get_bits(region: Region) -> int:
    """The bits of a region's elements."""
    if region.kept is not None or region.value is None:
        return EXACT
    codec = inner(region.value.codec)
    if isinstance(codec, GroupAffine):
        return codec.bits
    return EXACT if isinstance(codec, (Raw, BitMask, Narrow)) else 0  # it is not known what a user's codec restores


def _resolved(value: Any, reader: str) -> Any:
    """Return a value with its operands restored. ``reader`` is the name of the operator that reads it."""
    if isinstance(value, (Kept, Beside, _Inner, Part)):
        try:
            return restore(value)
        except RuntimeError as error:
            changed, hint, _ = str(error).partition(" Hint: ")
            if not hint:
                raise
            raise RuntimeError(
                f"{changed} Hint: backward recomputes the result of {reader} from it; change it after backward, or "
                "call compress_model with recompute=False, which stores that result."
            ) from None
    if type(value) in (list, tuple):
        return type(value)(_resolved(item, reader) for item in value)
    return value


def _operands(values: Any) -> Iterator[Operand]:
    for value in values:
        if isinstance(value, Whole):
            yield value.part
        elif isinstance(value, (Stored, There, Made)):
            yield value
        elif type(value) in (list, tuple):
            yield from _operands(value)


def _under(autocast: tuple[str, torch.dtype] | None) -> AbstractContextManager[Any]:
    """A block with the autocast that a call ran under, or without one, wherever backward runs."""
    return DisableAutocast() if autocast is None else torch.autocast(*autocast)
