"""``Formulas``: the formulas by which backward can recompute tensors of one forward.

A level stores what each operator saves, and often several of these are made from one another: the input of an
activation, its result, which a product saves, the product, which a linear layer saves. With ``recompute=True`` only the
first of them is stored. If a saved tensor was made by a cheap function from tensors that are stored in at least as many
bits, the function's formula waits in its place. The error of the recomputed tensor is that of what is stored, passed
through the function.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from actcore import GroupAffine, Kept, Layout
from actcore.replay import NotedCalls
from integrations._utils.plain_tensor_types import PLAIN
from integrations._utils.storages import StorageMap
from integrations._utils.torch_internals import ALL_GATHER
from integrations.policies.rules import Need
from integrations.runtime.formulas.formula import (
    COPIED,
    KEPT,
    MADE,
    STORED,
    Bound,
    Formula,
    LastComputed,
    Made,
    Noted,
    Operand,
    Place,
    Read,
    Recomputed,
    Stored,
    Template,
    There,
    Whole,
    bind,
    with_slots,
)
from integrations.runtime.formulas.gathers import Gathers
from integrations.runtime.formulas.operators import (
    CASTING,
    CASTS,
    Again,
    again,
    again_saved,
    amplifies,
    gain,
    get_autocast,
    hides,
    needs_exact,
    overwrites,
    stays_on_rank,
)
from integrations.tracing.call import Call
from integrations.tracing.checkpoints import Boundary
from integrations.tracing.owners import BUFFER, PARAMETER
from integrations.tracing.storage.forms import Wrapper
from integrations.tracing.storage.regions import AS_IN_MEMORY, find_lazy_changes
from integrations.tracing.tensors import find_local, find_part, get_storage, is_collective_result, is_dtensor

if TYPE_CHECKING:
    from integrations.policies.policy import SaveDecision
    from integrations.tracing.owners import Owners
    from integrations.tracing.storage.storage import Storages
    from integrations.tracing.tracker import CallTracker

_OF_NORMS = (Need.NORM, Need.MOMENT)
_DEAREST = 12
"""A tensor's formulas may make at most this many times as many elements as the tensor has."""
_SMALL, _SMALL_BUFFER = 1 << 10, 1 << 16
"""Tensors of up to so many bytes are copied for a formula, and buffers of the model and weights that a rank gathers."""


def notes_all(step: int) -> bool:
    """Whether the forward of this number notes every result, and stores nothing as the forward before did: other
    formulas may be of use than those of before, as when a layer is unfrozen."""
    return step % 16 == 0


class Formulas(NotedCalls):
    """The formulas of the results that a forward has made so far.

    Its base class, in C, is told of each call that is over. Where the forward before has called the same with the same
    kind of tensors, it makes the formula by the ``Template`` of that one, or none for a result that was of no use;
    ``note`` has the other calls.

    Args:
        storages: what is stored of the forward's memory.
        owners: say which memory the model keeps.
        tracker: follows the forward's calls.
        before: the results that the forward before has noted.
        anew: whether this forward finds out anew which formulas are of use. Otherwise it makes none for results that
            were of no use to the forward before.
        replays: whether formulas are made by the templates of the forward before.

    Attributes:
        noted: the results that this forward notes.
        gathers: the gathered tensors that this forward saves; ``None`` where backward gathers none again.
        last: the formula whose result is lent.
    """

    gathers: Gathers | None = None

    def __init__(
        self,
        storages: Storages,
        owners: Owners,
        tracker: CallTracker,
        before: Sequence[Noted],
        anew: bool,
        replays: bool,
    ) -> None:
        self.storages, self.owners, self.tracker, self._anew = storages, owners, tracker, anew
        self.before, self.noted, self.fully = before, list[Noted](), not replays
        self._formulas: StorageMap[Formula] = StorageMap()
        self.last = LastComputed(storages.last.double)
        self.formulas, self.entries = self._formulas.by_address, storages.entries.by_address
        self.exposed, self.parts = tracker.exposed.by_address, tracker.parts.by_address
        self.holders, self.put = owners.holders, self._formulas.put

    def note(self, call: Call, outputs: Sequence[Tensor]) -> None:
        """Notes by which formula, if any, the result of a call that is over can be recomputed."""
        if len(outputs) != 1:
            return
        output = outputs[0]
        if self.gathers is not None:
            self.gathers.note(call, output, self._find_operand)
            self.fully |= call.function is ALL_GATHER  # it has to see the calls that join the pieces
        if call.function is ALL_GATHER or needs_exact(call.function) is None:
            return
        if not (type(output) in PLAIN or is_dtensor(output)) or not stays_on_rank(call, output):
            return
        place = len(self.noted)
        before = self.before[place] if place < len(self.before) else None
        if before is not None and before.function is not call.function:
            before = None
        if before is not None and not before.used and not self._anew:
            self.noted.append(before)
            return
        noted = Noted(call.function)
        self.noted.append(noted)
        result = output if type(output) in PLAIN else find_local(output)
        storage = None if result is None else get_storage(result)
        operands = _Operands(self, call.arguments[0] if call.arguments and result is call.arguments[0] else None)
        formula = None if result is None or storage is None else self._of_result(call, result, operands)
        if storage is None or formula is None:
            return
        template = operands.template(call, formula)
        if before is not None and template is not None and before.makes_like(template):
            self.noted[place] = noted = before
            noted.used &= not self._anew
        formula.noted, noted.template = noted, template
        if template is not None:
            template.formula.noted = noted
        self._formulas.put(storage, formula)

    def gather_again(self) -> None:
        """Have backward repeat all-gathers of DTensors. All ranks have to ask for it."""
        self.gathers = Gathers(self.tracker.exposed, self.storages.last.double)

    def _find_operand(self, tensor: Tensor) -> Operand | None:
        """The operand for a tensor; ``None`` if there is none."""
        try:
            return _Operands(self, None).of(tensor)
        except _NotStoredError:
            return None

    def of(self, storage: torch.UntypedStorage) -> Formula | None:
        """The formula for the content of a storage."""
        return self._formulas.get(storage)

    def recomputed(
        self,
        tensor: Tensor,
        storage: torch.UntypedStorage,
        call: Call,
        role: str,
        decision: SaveDecision,
        whole: Tensor | None = None,
    ) -> tuple[Recomputed, str] | None:
        """What autograd holds in the place of a tensor that is recomputed, and the reason; ``None`` for a tensor that
        is to be stored.

        Args:
            tensor, storage: the tensor and its memory.
            call: the call that saves it.
            role: the tensor's role in the call.
            decision: how it would be stored.
            whole: the DTensor whose part on this rank the tensor is; ``None`` for one that is no part.
        """
        if not isinstance(decision.codec, GroupAffine) or isinstance(call, Boundary) or call.recomputes:
            return None  # nothing would be rounded, or backward uses the tensor in another way
        if decision.form is not None or (decision.need in _OF_NORMS and role != "result"):
            return None  # some elements have to be on their side of a jump, or what is normalised shares no groups
        if storage in self.tracker.exposed:
            return None
        entry = self.storages.entries.get(storage)
        if entry is not None and any(region.value or region.kept for region in entry.alive()):
            return None  # storing it costs nothing or little, beside what is stored of its memory already
        formula, place = self._of_saved(tensor, storage, call, role, whole), Place.of(tensor)
        if formula is None or formula.dtype != tensor.dtype or any(find_lazy_changes(tensor)):
            return None
        if role == "result" and overwrites(call):  # a copy, which has a storage of its own
            place = formula.place
        bound = bind(formula, decision.codec.bits) if formula.place.holds(place) else None
        if bound is None:
            return None
        return Recomputed(bound, place, self.last), explain(bound)

    def _of_saved(
        self, tensor: Tensor, storage: torch.UntypedStorage, call: Call, role: str, whole: Tensor | None
    ) -> Formula | None:
        """The formula of a tensor that a call saves."""
        formula = self.of(storage)
        if formula is not None:
            return formula if formula.version == tensor._version else None
        if role == "result" and overwrites(call):
            return self._of_copy(call)
        made = again_saved(call, tensor) if role == "result" else None
        if made is not None:
            if not stays_on_rank(call, tensor if whole is None else whole):
                return None
            return self._formula(call, made, _Operands(self, None), tensor, Place.of(tensor))
        return self._of_cast(tensor, storage, call, whole)

    def _of_copy(self, call: Call) -> Formula | None:
        """The formula of the tensor that an operator is about to overwrite, and of which it saves a copy."""
        overwritten = call.arguments[0]
        storage = get_storage(overwritten) if type(overwritten) in PLAIN else None
        formula = None if storage is None or storage in self.tracker.exposed else self.of(storage)
        if formula is None or formula.place != Place.of(overwritten):
            return None
        return formula if formula.version == overwritten._version else None

    def _of_cast(
        self, tensor: Tensor, storage: torch.UntypedStorage, call: Call, whole: Tensor | None
    ) -> Formula | None:
        """The formula of an argument in autocast's dtype, of which an operator makes a copy for itself. Torch says
        inside of the operator that autocast is off."""
        if (
            call.name not in CASTING
            or tensor.dtype not in CASTS
            or not tensor.is_contiguous()
            or storage.nbytes() != tensor.nbytes
        ):
            return None
        found = [one for one in call.arguments if one.numel() == (tensor if whole is None else whole).numel()]
        part = _find_plain(found[0]) if len(found) == 1 else None
        if part is None or part.dtype != torch.float32 or not part.is_contiguous():
            return None
        cast = Call(Tensor.to, (found[0], tensor.dtype), {})
        if not stays_on_rank(cast, tensor if whole is None else whole):
            return None
        made = Again(cast.function, cast.given.args, {})
        place = Place(Layout.of(part), 0)  # the tensor may be another view of it
        return self._formula(cast, made, _Operands(self, None), tensor, place)

    def _of_result(self, call: Call, result: Tensor, operands: _Operands) -> Formula | None:
        """The formula of a call's result."""
        if needs_exact(call.function) is None:
            return None
        made = again(call, result, operands.overwritten is not None)
        if made is None:
            return None
        return self._formula(call, made, operands, result, Place.of(result))

    def _formula(self, call: Call, made: Again, operands: _Operands, result: Tensor, place: Place) -> Formula | None:
        """The formula of a call's result at a place, as backward repeats the call; ``None`` if what it reads is not
        stored, or it is not cheap."""
        if result.is_inference() or not place.layout.dense:
            return None
        tensors: list[Tensor] = []
        args = with_slots(made.args, tensors)
        kwargs = {key: with_slots(value, tensors) for key, value in made.kwargs.items()}
        try:
            found = tuple(map(operands.of, tensors))
        except _NotStoredError:
            return None
        cost = result.numel() + operands.cost
        if not operands.any_stored or cost > _DEAREST * result.numel() or hides(call, operands.gains):
            return None
        return Formula(
            call=Again(made.function, args, kwargs),
            operands=found,
            place=place,
            dtype=result.dtype,
            version=result._version,
            exactly=amplifies(call),
            autocast=get_autocast(result),
            cost=cost,
            gain=gain(call, operands.gains),
            names=tuple(dict.fromkeys(chain((call.name,), *reversed(operands.names)))),
        )


class _NotStoredError(Exception):
    """A tensor among a call's arguments is not stored, not kept alive, and not recomputed."""


class _Operands:
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
        self.cost, self.any_stored = 0, False
        self.gains: list[float] = []
        self.names: list[tuple[str, ...]] = []
        self._read: list[tuple[Tensor, Read | None]] = []

    def of(self, tensor: Tensor) -> Operand:
        """The operand for a tensor.

        Raises:
            _NotStoredError: there is none.
        """
        part = _find_plain(tensor)
        storage = None if part is None else get_storage(part)
        if part is None or storage is None or part.is_inference():
            raise _NotStoredError
        if storage in self._formulas.tracker.exposed:
            if not self._is_gathered(tensor, storage) or part.nbytes > _SMALL_BUFFER:
                raise _NotStoredError
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
            raise _NotStoredError
        holder, read = self._formulas.owners.holders.get(storage._cdata), None
        if part is tensor and not self._is_gathered(tensor, storage):
            read = Read(KEPT if holder == PARAMETER else COPIED, place, part.dtype, None, holder)
        self._add(tensor, 0.0, read)
        return There(kept)

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
        return Template(args, kwargs, self.overwritten is not None, reads, replace(formula, operands=(), version=0))

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


def _find_plain(tensor: Tensor) -> Tensor | None:
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


def explain(bound: Bound) -> str:
    """Return the reason in a report's row, with the operators of a formula, the last one first."""
    return f"recomputed by {', '.join(bound.formula.names)} from stored tensors"
