"""``Operands``: what restores the tensors that a formula reads, and what those of the next forward must be like."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from actcore import Kept
from integrations._utils.plain_tensor_types import PLAIN
from integrations.runtime.formulas.formula import (
    COPIED,
    KEPT,
    MADE,
    STATISTICS,
    STORED,
    UNREAD,
    Formula,
    Made,
    Operand,
    Place,
    Read,
    Stored,
    Template,
    There,
    Whole,
    with_slots,
)
from integrations.tracing.call import Call
from integrations.tracing.owners import BUFFER, PARAMETER
from integrations.tracing.storage.forms import Wrapper
from integrations.tracing.storage.regions import AS_IN_MEMORY, find_lazy_changes
from integrations.tracing.tensors import find_part, get_storage, is_collective_result, is_dtensor

if TYPE_CHECKING:
    from integrations.runtime.formulas.table import Formulas

_SMALL, _SMALL_BUFFER = 1 << 10, 1 << 16
"""Tensors of up to so many bytes are copied for a formula, and buffers of the model and weights that a rank gathers."""


class NotStoredError(Exception):
    """A tensor among a call's arguments is not stored, not kept alive, and not recomputed."""


class Operands:
    """Replaces the tensors among a call's arguments by operands.

    Args:
        formulas: the forward's.
        overwritten: the argument that the call has overwritten; ``None`` for none.

    Attributes:
        overwritten: as given.
        cost: elements that the formulas among the operands make.
        any_stored: whether some operand is more than a parameter or the like.
        gains: of each operand.
        names: of the operators of each formula among them.
    """

    def __init__(self, formulas: Formulas, overwritten: Tensor | None) -> None:
        self._formulas = formulas
        self.overwritten = overwritten
        self.clear()

    def clear(self) -> None:
        """Starts over."""
        self.cost, self.any_stored = 0, False
        self.gains: list[float] = []
        self.names: list[tuple[str, ...]] = []
        self._read: list[tuple[Tensor, Read | None]] = []
        self._beside: tuple[Read, ...] = ()

    def of(self, tensor: Tensor) -> Operand:
        """The operand for a tensor.

        Raises:
            NotStoredError: there is none.
        """
        part = find_plain(tensor)
        storage = None if part is None else get_storage(part)
        if part is None or storage is None or part.is_inference():
            raise NotStoredError
        if storage in self._formulas.tracker.exposed:
            if not self._is_gathered(tensor, storage) or part.nbytes > _SMALL_BUFFER:
                raise NotStoredError
            self._add(tensor, 0.0, None)
            return There(_copied(tensor))
        # The operator that has overwritten it has raised its version by one.
        version = part._version - (tensor is self.overwritten)
        found, place = None, Place.of(part)
        if not (is_dtensor(tensor) and tensor._version):  # its part does not count its versions
            told = (version, part.dtype, find_lazy_changes(part))
            found = self._stored(place, storage, told) or self._made(place, storage, told)
        if found is not None:
            self.any_stored = True
            formula = found.formula if isinstance(found, Made) else None
            wrapped = part is not tensor or storage in self._formulas.tracker.parts
            kind = STORED if formula is None else MADE
            read = None if wrapped else Read(kind, place, part.dtype, None if formula is None else formula.noted, None)
            self._add(tensor, 1.0 if formula is None else formula.gain, read)
            if not wrapped:
                return found
            return Whole(found, Wrapper.take_from(tensor) if is_dtensor(tensor) else None)
        kept = None if tensor is self.overwritten else self._kept(tensor, part, storage)
        if kept is None:
            raise NotStoredError
        holder, read = self._formulas.owners.holders.get(storage._cdata), None
        if part is tensor and not self._is_gathered(tensor, storage):
            read = Read(KEPT if holder == PARAMETER else COPIED, place, part.dtype, None, holder)
        self._add(tensor, 0.0, read)
        return There(kept)

    def find_some(self, tensors: Sequence[Tensor], read: Collection[int]) -> tuple[Operand | None, ...]:
        """The operands for the tensors with these indices; ``None`` for others.

        Raises:
            NotStoredError: as ``of``.
        """
        found: list[Operand | None] = []
        for at, tensor in enumerate(tensors):
            if at in read:
                found.append(self.of(tensor))
            else:
                self._read.append((tensor, Read(UNREAD, Place.of(tensor), tensor.dtype, None, None)))
                found.append(None)
        return tuple(found)

    def add_statistics(self) -> None:
        """Notes that the statistics by which the first of the tensors is stored are a further operand."""
        tensor, _ = self._read[0]
        self._beside = (Read(STATISTICS, Place.of(tensor), tensor.dtype, None, None),)

    def _add(self, tensor: Tensor, gain: float, read: Read | None) -> None:
        self.gains.append(gain)
        self._read.append((tensor, read))

    def template(self, call: Call, formula: Formula) -> Template | None:
        """How the next forward makes the formula of the same call. ``None`` if an operand is no plain tensor, or no
        argument of the call: it then has to find out anew."""
        tensors: list[Tensor] = []
        args = with_slots(call.given.args, tensors)
        kwargs = {key: with_slots(value, tensors) for key, value in call.given.kwargs.items()}
        reads = tuple(read for _, read in self._read if read is not None)
        same = len(reads) == len(self._read) == len(tensors)
        if not same or not all(one is read for one, (read, _) in zip(tensors, self._read, strict=True)):
            return None
        if any(read.kind == MADE and read.noted is None for read in reads):
            return None
        return Template(
            args,
            kwargs,
            self.overwritten is not None,
            reads + self._beside,
            replace(formula, operands=(), version=0, noted=None),
        )

    def _stored(self, place: Place, storage: torch.UntypedStorage, told: tuple[Any, ...]) -> Stored | None:
        entry = self._formulas.storages.entries.get(storage)
        if entry is None:
            return None
        for region in entry.alive():
            if region.value is None and region.kept is None:
                continue
            if (region.version, region.dtype, region.lazy) == told and region.reaches(*place):
                return Stored(weakref.ref(region), place)
        return None

    def _made(self, place: Place, storage: torch.UntypedStorage, told: tuple[Any, ...]) -> Made | None:
        formula = self._formulas.of(storage)
        if formula is None or (formula.version, formula.dtype, AS_IN_MEMORY) != told or not formula.place.holds(place):
            return None
        self.cost += formula.cost
        self.names.append(formula.names)
        return Made(formula, place)

    def _kept(self, tensor: Tensor, part: Tensor, storage: torch.UntypedStorage) -> Kept | None:
        """A parameter, which an optimizer leaves as it is until backward has read it, or a copy of a small tensor, of a
        buffer above all, which a forward may change. ``None`` for all else. ``part`` is this rank's part of a DTensor,
        or the tensor itself. A DTensor is copied: foreach operators, such as those of optimizers, change it without a
        change of its version."""
        holder = self._formulas.owners.holders.get(storage._cdata)
        if holder == PARAMETER and part is tensor:
            return Kept.of(tensor)
        copied = holder in (PARAMETER, BUFFER) or self._is_gathered(tensor, storage)
        return None if part.nbytes > (_SMALL_BUFFER if copied else _SMALL) else _copied(tensor)

    def _is_gathered(self, tensor: Tensor, storage: torch.UntypedStorage) -> bool:
        """Whether a tensor is a parameter that is not in the model between forwards: ``fully_shard`` and ZeRO-3 gather
        it before its module's forward and free it afterwards."""
        return isinstance(tensor, nn.Parameter) and storage._cdata not in self._formulas.owners.holders


def find_plain(tensor: Tensor) -> Tensor | None:
    """A tensor that is a storage and nothing else, or the elements that this rank has of a DTensor or a collective's
    result. ``None`` for others, which are not looked at, since that may cost much, and for a collective's result that
    was changed in place."""
    if type(tensor) in PLAIN:
        return tensor
    return None if is_collective_result(type(tensor)) and tensor._version else find_part(tensor)


def _copied(tensor: Tensor) -> Kept:
    """A copy of a tensor as it is now, right after the call that has read it."""
    with torch.no_grad():
        return Kept.of(tensor.detach().clone())
