"""``Formula``: how backward recomputes a tensor from others that are stored, and what autograd holds in its place."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from actcore import BitMask, GroupAffine, Kept, Layout, Narrow, Raw
from actcore.replay import hold_operand, hold_operands, recompute, restore
from integrations._utils.torch_internals import DisableAutocast
from integrations.runtime.formulas.operators import Again
from integrations.tracing.double_backward import DoubleBackward
from integrations.tracing.storage.forms import Part, Wrapper
from integrations.tracing.storage.regions import Region, inner

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


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """Marks the position of the tensor with this index among the arguments of a call."""

    index: int


@dataclass(slots=True, eq=False)
class Formula:
    """A call of a cheap function whose tensor arguments are replaced by operands.

    Attributes:
        call: the function and its arguments, with a ``Slot`` for each operand.
        operands: what restores the tensors among the arguments; ``None`` for one that is not read.
        place, dtype, version: of the result, as it was when it had just been made; of a DTensor, of this rank's part.
        exactly: whether operands have to be exact.
        autocast: device and dtype of the autocast that the call ran under; ``None`` for none.
        cost: elements that the formula and those of its operands make.
        gain: the factor by which an error of what is stored may be amplified; infinite where it is not known.
        names: of the operators, that of the formula first, and then of those that make its operands.
        after: its function after a norm, as ``formulas.normalized_inputs`` names it, and the place of the operand that
            is the norm's input or follows the norm; ``None`` for a formula that does not follow a norm.
        bound: the formula with its operands, for the tensors that are saved of its result, while one of them lives.
        noted: is told that the formula is of use; ``None`` where nobody is.
    """

    call: Again
    operands: tuple[Operand | None, ...]
    place: Place
    dtype: torch.dtype
    version: int
    exactly: bool
    autocast: tuple[str, torch.dtype] | None
    cost: int
    gain: float
    names: tuple[str, ...]
    after: tuple[str, int] | None = None
    bound: weakref.ref[Bound] | None = None
    noted: Noted | None = None


STORED, MADE, KEPT, COPIED, UNREAD, STATISTICS = range(6)
"""What restores an operand: what is stored of its memory; another formula; the tensor itself, a parameter; a copy;
nothing, since it is not read; the statistics by which a norm's input is stored, which are no argument of the call. The
order is that of ``Kind`` in ``csrc/bindings/formulas.cpp``."""


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """An operand of a template: what the tensor in the next forward has to be like.

    Attributes:
        kind: what restores it, one of ``STORED`` and so on.
        place, dtype: of the tensor.
        noted: the result whose formula restores it; ``None`` for other kinds.
        holder: who keeps its memory alive; ``None`` for nobody that is known.
    """

    kind: int
    place: Place
    dtype: torch.dtype
    noted: Noted | None
    holder: str | None


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """A formula of one forward, by which the next makes its own where it calls the same.

    Attributes:
        args, kwargs: the arguments of the call, with a ``Slot`` for each tensor.
        overwrites: whether the call returns its first argument.
        reads: the operands.
        formula: the formula, without operands, version and ``noted``.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    overwrites: bool
    reads: tuple[Read, ...]
    formula: Formula


@dataclass(slots=True, eq=False)
class Noted:
    """A result that a forward has noted.

    Attributes:
        function: which has made it.
        used: whether something that was saved is recomputed by its formula.
        template: how the next forward makes its formula; ``None`` if it has to find out anew.
    """

    function: Callable[..., Any]
    used: bool = False
    template: Template | None = None

    def makes_like(self, template: Template) -> bool:
        """Whether formulas of another template are as these to what reads their results: what was learned of tensors
        that they recompute, and the templates of formulas that read them, then hold."""
        own, other = None if self.template is None else self.template.formula, template.formula
        return own is not None and _decisive(own) == _decisive(other)


def _decisive(formula: Formula) -> tuple[Any, ...]:
    """What decisions on a formula's readers follow from. A gain may be NaN, which is not equal to itself."""
    decided = formula.place, formula.dtype, formula.names, formula.cost, formula.exactly, formula.after
    return *decided, repr(formula.gain)


class Bound:
    """A formula whose operands are held, so that backward can compute it. Of a DTensor it computes this rank's part.

    Attributes:
        held: what holds each operand.
        bits: the least bits of an operand's elements.
        waiting: how many saved tensors backward has not read.
        lent: the result and its version, kept for further saved tensors that are read right after another one.
    """

    __slots__ = ("__weakref__", "bits", "formula", "held", "lent", "waiting")

    def __init__(self, formula: Formula, held: tuple[Any, ...], bits: int) -> None:
        self.formula, self.held, self.bits = formula, held, bits
        self.waiting = 0
        self.lent: tuple[Tensor, int, Any] | None = None


class LastComputed:
    """The formula whose result is lent. At most one tensor is alive beyond those that autograd holds.

    Attributes:
        double: is notified of a backward with ``create_graph=True``; ``None`` for none.
    """

    __slots__ = ("_bound", "double")

    def __init__(self, double: DoubleBackward | None) -> None:
        self._bound: weakref.ref[Bound] | None = None
        self.double = double


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

    def template(self) -> Recomputed:
        """One of the same place that lacks formula and lender."""
        like = copy.copy(self)
        like.bound = like._last = None  # type: ignore[assignment]
        return like

    @property
    def bits(self) -> int:
        """The fewest bits of the tensors from which it is recomputed."""
        return self.bound.bits

    @property
    def double(self) -> DoubleBackward | None:
        """The object to notify of a backward with ``create_graph=True``."""
        return self._last.double

    def unpack(self) -> Tensor:
        """The tensor: a view of what the formula lends, if nothing else was computed since and nothing was written to
        that, or computed now."""
        return recompute(self)


def bind(formula: Formula, bits: int) -> Bound | None:
    """The formula with its operands held; ``None`` if one is not stored any more, or in fewer bits than required."""
    bound: Bound | None = hold_operands(formula)
    return bound if bound is not None and bound.bits >= bits else None


def with_slots(value: Any, tensors: list[Tensor]) -> Any:
    """A value with a ``Slot`` for each tensor in it, in lists and tuples, too. The tensors are appended to a list."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return Slot(len(tensors) - 1)
    if type(value) in (list, tuple):
        return type(value)(with_slots(item, tensors) for item in value)
    return value


class Inner:
    """Holds an operand that another formula recomputes."""

    __slots__ = ("bound", "place")

    def __init__(self, bound: Bound, place: Place) -> None:
        self.bound, self.place = bound, place

    def unpack(self) -> Tensor:
        """The operand, computed now."""
        return restore(self)


def hold_whole(operand: Whole) -> tuple[Any, int] | None:
    """What holds an operand whose elements are in another tensor, and its bits; ``None`` where that is gone."""
    region = operand.part.region() if isinstance(operand.part, Stored) else None
    if region is not None and region.kept is not None:
        return None  # the version of a part does not tell whether the DTensor was changed
    found = hold_operand(operand.part)
    if found is None or operand.wrapper is None:
        return found
    held, bits = found
    return Part(held, operand.wrapper), bits


def get_bits(region: Region) -> int:
    """The bits of a region's elements."""
    if region.kept is not None or region.value is None:
        return EXACT
    codec = inner(region.value.codec)
    if isinstance(codec, GroupAffine):
        return codec.bits
    return EXACT if isinstance(codec, (Raw, BitMask, Narrow)) else 0  # it is not known what a user's codec restores


def explain_change(error: RuntimeError, reader: str) -> None:
    """Raises an error of a kept tensor that was changed, with what to do about it.

    Args:
        error: the error that restoring an operand has raised.
        reader: the name of the operator that reads it.
    """
    changed, hint, _ = str(error).partition(" Hint: ")
    if hint:
        raise RuntimeError(
            f"{changed} Hint: backward recomputes the result of {reader} from it; change it after backward, or "
            "call compress_model with recompute=False, which stores that result."
        ) from None


def lay_out(result: Tensor, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A copy of a result in a layout and dtype."""
    return torch.empty_strided(shape, strides, dtype=dtype, device=result.device).copy_(result)


def enter_autocast(autocast: tuple[str, torch.dtype] | None) -> AbstractContextManager[Any]:
    """A block with the autocast that a call ran under, or without one, wherever backward runs."""
    return DisableAutocast() if autocast is None else torch.autocast(*autocast)
