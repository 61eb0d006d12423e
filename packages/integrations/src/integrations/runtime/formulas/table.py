"""``Formulas``: the formulas by which backward can recompute tensors of one forward.

A level stores what each operator saves, and often several of these are made from one another: the input of an
activation, its result, which a product saves, the product, which a linear layer saves. With ``recompute=True`` only the
first of them is stored. If a saved tensor was made by a cheap function from tensors that are stored in at least as many
bits, the function's formula waits in its place. The error of the recomputed tensor is that of what is stored, passed
through the function.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from actcore import GroupAffine, Layout
from actcore.replay import NotedCalls
from integrations._utils.plain_tensor_types import PLAIN
from integrations._utils.storages import StorageMap
from integrations._utils.torch_internals import ALL_GATHER
from integrations.policies.rules import Need
from integrations.runtime.formulas.formula import (
    Bound,
    Formula,
    LastComputed,
    Noted,
    Operand,
    Place,
    Recomputed,
    bind,
    with_slots,
)
from integrations.runtime.formulas.gathers import Gathers
from integrations.runtime.formulas.normalized_inputs import NORM, find_after, find_norm, hold_statistics, is_like
from integrations.runtime.formulas.operands import NotStoredError, Operands, find_plain
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
from integrations.tracing.storage.regions import find_lazy_changes
from integrations.tracing.tensors import find_local, get_storage, is_dtensor

if TYPE_CHECKING:
    from integrations.policies.policy import SaveDecision
    from integrations.tracing.owners import Owners
    from integrations.tracing.storage.storage import Storages
    from integrations.tracing.tracker import CallTracker

_OF_NORMS = (Need.NORM, Need.MOMENT)
_DEAREST = 12
"""A tensor's formulas may make at most this many times as many elements as the tensor has."""


def notes_all(step: int) -> bool:
    """Whether the forward of this number notes every result, and stores nothing as the forward before did: other
    formulas may be of use than those of before, as when a layer is unfrozen."""
    return step % 16 == 0


class Formulas(NotedCalls):
    """The formulas of the results that a forward has made so far.

    The base class, in C, gets each call that is over. If the forward before made the same call with the same kind of
    tensors, C makes the formula from the ``Template`` of that call, or none for a result that was of no use. All other
    calls go to ``note``.

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
        operands = Operands(self, call.arguments[0] if call.arguments and result is call.arguments[0] else None)
        formula = None if result is None or storage is None else self._of_result(call, result, operands)
        if storage is None or formula is None:
            return
        template = operands.template(call, formula)
        if before is not None and template is not None and before.makes_like(template):
            self.noted[place] = noted = before
            noted.used &= not self._anew
        formula.noted, noted.template = noted, template
        self._formulas.put(storage, formula)

    def gather_again(self) -> None:
        """Have backward repeat all-gathers of DTensors. All ranks have to ask for it."""
        self.gathers = Gathers(self.tracker.exposed, self.storages.last.double)

    def _find_operand(self, tensor: Tensor) -> Operand | None:
        """The operand for a tensor; ``None`` if there is none."""
        try:
            return Operands(self, None).of(tensor)
        except NotStoredError:
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
            return self._formula(call, made, Operands(self, None), tensor, Place.of(tensor))
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
        part = find_plain(found[0]) if len(found) == 1 else None
        if part is None or part.dtype != torch.float32 or not part.is_contiguous():
            return None
        cast = Call(Tensor.to, (found[0], tensor.dtype), {})
        if not stays_on_rank(cast, tensor if whole is None else whole):
            return None
        made = Again(cast.function, cast.given.args, {})
        place = Place(Layout.of(part), 0)  # the tensor may be another view of it
        return self._formula(cast, made, Operands(self, None), tensor, place)

    def _of_result(self, call: Call, result: Tensor, operands: Operands) -> Formula | None:
        """The formula of a call's result."""
        if needs_exact(call.function) is None:
            return None
        if (found := self._of_norm(call, result, operands)) is not None:
            return found
        operands.clear()
        made = again(call, result, operands.overwritten is not None)
        if made is None:
            return None
        return self._formula(call, made, operands, result, Place.of(result))

    def _formula(self, call: Call, made: Again, operands: Operands, result: Tensor, place: Place) -> Formula | None:
        """The formula of a call's result at a place, as backward repeats the call; ``None`` if what it reads is not
        stored, or it is not cheap."""
        tensors: list[Tensor] = []
        args = with_slots(made.args, tensors)
        kwargs = {key: with_slots(value, tensors) for key, value in made.kwargs.items()}
        try:
            found = tuple(map(operands.of, tensors))
        except NotStoredError:
            return None
        after = find_after(call, made, found, tensors, result, place)
        return self._finished(call, Again(made.function, args, kwargs), found, operands, result, place, after)

    def _of_norm(self, call: Call, result: Tensor, operands: Operands) -> Formula | None:
        """The formula of a norm's result, if its input is stored by the norm's own statistics."""
        norm = find_norm(call)
        if norm is None:
            return None
        tensors, read, made = norm
        try:
            found = operands.find_some(tensors, read)
        except NotStoredError:
            return None
        statistics = hold_statistics(found[0])
        if statistics is None or not is_like(found[0], result):
            return None
        operands.add_statistics()
        return self._finished(call, made, (*found, statistics), operands, result, Place.of(result), (NORM, 0))

    def _finished(
        self,
        call: Call,
        made: Again,
        found: tuple[Operand | None, ...],
        operands: Operands,
        result: Tensor,
        place: Place,
        after: tuple[str, int] | None,
    ) -> Formula | None:
        """The formula with these operands; ``None`` if it is not cheap."""
        if result.is_inference() or not place.layout.dense:
            return None
        cost = result.numel() + operands.cost
        if not operands.any_stored or cost > _DEAREST * result.numel() or hides(call, operands.gains):
            return None
        return Formula(
            call=made,
            operands=found,
            place=place,
            dtype=result.dtype,
            version=result._version,
            exactly=amplifies(call),
            autocast=get_autocast(result),
            cost=cost,
            gain=gain(call, operands.gains),
            names=tuple(dict.fromkeys(chain((call.name,), *reversed(operands.names)))),
            after=after,
        )


def explain(bound: Bound) -> str:
    """Return the reason in a report's row, with the operators of a formula, the last one first."""
    return f"recomputed by {', '.join(bound.formula.names)} from stored tensors"
