"""``Following``: a forward that follows a plan, inside of a session that stores what the plan does not make again."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from integrations.bounds import EIGHT_BITS
from integrations.checkpoint.dispatch.casts import fresh_casts
from integrations.checkpoint.dispatch.memory import Geometry
from integrations.checkpoint.dispatch.versions import unseen
from integrations.checkpoint.execution.keeping import Exactly, Packed
from integrations.checkpoint.execution.repeating import aside
from integrations.checkpoint.execution.segments import Results
from integrations.checkpoint.execution.tape import UNPLANNED, Tape
from integrations.checkpoint.graphs.schedule import Schedule
from integrations.checkpoint.graphs.sharding import hooks_unseen, units_of
from integrations.checkpoint.planning.plans import Followed, Plans
from integrations.levels import Level
from integrations.saved.regions import View
from integrations.saved.ways import Fate, Way, exactly, in_eight_bits, kept, way_of
from integrations.stores import Store

if TYPE_CHECKING:
    from integrations.saved.session import Session

_DECIDED = "a mask was made by it, or the like, and goes with no other: kept exactly"


class Following:
    """A forward that follows a plan, inside of a session that stores what it keeps. A context, once the session is one.

    Args:
        model: of the forward.
        plans: that the plan is one of.
        followed: by the forward.
        level: as which everything waits that the plan has no store for, what it makes again included; ``None``: it
            waits as it is.
    """

    def __init__(self, model: nn.Module, plans: Plans, followed: Followed, level: Level | None = None) -> None:
        self._model, self._plans, self._followed, self._level = model, plans, followed, level
        self._contexts = ExitStack()

    @property
    def plain(self) -> Schedule | None:
        """What is followed, where everything waits as it does without a plan; else ``None``."""
        schedule = self._followed.schedule
        # Attention that is computed again is another than torch's, whatever else waits.
        changes = self._level is not None or schedule.recomputed or schedule.stores or schedule.graph.rounded
        return None if changes else schedule

    def way(self, base: Level) -> Way | None:
        """How a session stores what the plan does not speak of, as where the forward is another than was planned for:
        as its level does, for which this is ``None``; where that is off, in 8 bits if these are within the plan's bound
        on the error, and otherwise in exact forms."""
        if self._level is not None:
            return None
        plan, schedule, _ = self._followed
        if not schedule.graph.rounded or (base.off and plan.error < EIGHT_BITS):
            return exactly(base)
        return in_eight_bits(base) if base.off else None

    def begin(self, session: Session) -> None:
        """The session has been entered."""
        units = units_of(self._model)
        plan, schedule, _ = self._followed
        rounds = schedule.graph.rounded if self._level is None else self._level.rounds_checkpoints
        own_attention = schedule.graph.rounded if self._level is None else plan.compressed
        if rounds:
            schedule = schedule.where_rounded
        schedule = schedule.within(units)
        by_level = self._level is not None
        tape = Tape(schedule, _Read(session, schedule, by_level))
        session.fates, session.aside = (
            _Planned(session, tape, schedule, rounds, by_level, self._followed.schedule),
            unseen,
        )
        tracker, checkpoints = session.tracker, session.checkpoints
        if checkpoints is not None:
            checkpoints.around = aside
        tracker.pack = session.hook if own_attention else None
        if not by_level:
            tracker.remaking = session.fates.remade
        with ExitStack() as contexts:
            contexts.enter_context(fresh_casts())
            if units:
                contexts.enter_context(hooks_unseen(self._model, tape))
            contexts.enter_context(tape)
            self._contexts = contexts.pop_all()
        self._tape = tape

    def end(self, session: Session, complete: bool) -> None:
        """The session is about to be left."""
        self._contexts.close()
        session.fates = session.tracker.remaking = None
        if complete:
            self._tape.finish()
            if self._tape.astray:
                self._plans.note_astray(self._followed, self._tape.astray)


class _Planned:
    """What a plan says of the tensors that autograd saves in one forward.

    Args:
        session: that stores them.
        tape: that follows the forward.
        schedule: that is followed.
        rounds: whether what a repetition reads may be rounded.
        by_level: whether what has no store waits as the session has it; otherwise as it is.
        plan: that the schedule is of.
    """

    def __init__(
        self, session: Session, tape: Tape, schedule: Schedule, rounds: bool, by_level: bool, plan: object
    ) -> None:
        self._session, self._tape, self._schedule = session, tape, schedule
        self._rounds, self._by_level = rounds, by_level
        self.plan = plan
        self.values = tape.values
        self._unplanned = Fate(session.way)
        self._fates: dict[tuple[Store | None, bool], Fate] = {}

    def of(self, tensor: Tensor) -> Fate:
        """What becomes of one."""
        value = self._tape.value_of(tensor)
        if value == UNPLANNED:
            return self._unplanned
        schedule = self._schedule
        value = schedule.final(value)
        key = schedule.stores.get(value), value in schedule.recomputed
        fate = self._fates.get(key)
        if fate is None:
            fate = self._fates[key] = self._fate(*key)
        return fate

    def remade(self, read: Sequence[Tensor], made: Sequence[Tensor]) -> Results | None:
        """How backward makes again what an operator has just made; ``None`` where it does not, where what was read
        waits for others in another form than it has when it is made again, or where it would stay for this alone."""
        schedule, values = self._schedule, self._schedule.graph.values
        first = self._tape.value_of(made[0])
        if first == UNPLANNED or schedule.store_of(first) is not None or values[first].saved < 0:
            return None
        for tensor in read:
            value = self._tape.value_of(tensor)
            if value == UNPLANNED or value in schedule.becomes:
                return None
            if schedule.is_made_again(value) and schedule.store_of(value) is not None:
                return None
        return self._tape.remade(made)

    def _fate(self, store: Store | None, again: bool) -> Fate:
        session = self._session
        if store is not None:
            way = way_of(store, session.level)
        elif self._by_level:
            way = session.way
        else:  # of what is made again, and then waits as it is, signs and the like may have to be stored now
            way = exactly(session.level) if again else kept(session.level)
        waits = store is not None or self._by_level
        return Fate(way, self._tape.handle, waits, self._rounds) if again else Fate(way)


class _Read(Exactly):
    """What repetitions of one forward read, which they get in the form in which autograd has it, too."""

    def __init__(self, session: Session, schedule: Schedule, by_level: bool) -> None:
        self._session, self._schedule, self._by_level = session, schedule, by_level
        self._known: dict[tuple[int, Geometry, bool], Packed] = {}

    def read(self, tensor: Tensor, value: int) -> Packed:
        """Its stored form."""
        key = value, Geometry.of(tensor), tensor.requires_grad
        found = self._known.get(key)
        if found is None:
            final, values = self._schedule.final(value), self._schedule.graph.values
            decided = values[value].exact and self._may_be_rounded(final)
            with torch._C.DisableTorchFunction(), torch.no_grad():
                stored = self._session.pack_held(tensor, _DECIDED if decided else "")
            found = self._known[key] = stored.beside() if isinstance(stored, View) else stored
            if values[final].saved < 0:  # autograd alone would not keep it
                self._session.records[-1].original_bytes = 0
        return found

    def _may_be_rounded(self, value: int) -> bool:
        store = self._schedule.stores.get(value)
        return self._by_level if store is None else not store.exact
