"""``Following``: a forward that follows a plan, inside of a session that stores what the plan does not recompute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from integrations._torch import DisableTorchFunction, in_forward_mode, peek_interpreter_stack
from integrations.common.warn import warn
from integrations.planning.bounds import EIGHT_BITS
from integrations.planning.plan import Plan
from integrations.planning.plans import Followed, Plans
from integrations.rules.levels import Level
from integrations.rules.stores import Store
from integrations.runtime.fates import Fate
from integrations.runtime.repeating.keeping import Exactly, Packed
from integrations.runtime.repeating.repeating import aside
from integrations.runtime.repeating.segments import Results
from integrations.runtime.repeating.tape import UNPLANNED, Tape
from integrations.step.dispatch.casts import fresh_casts
from integrations.step.dispatch.memory import Geometry, is_plain
from integrations.step.dispatch.versions import unseen
from integrations.step.graphs.schedule import Schedule
from integrations.step.graphs.sharding import hooks_unseen, units_of
from integrations.storing.regions import View
from integrations.storing.ways import Way, exactly, in_eight_bits, kept, way_of

if TYPE_CHECKING:
    from integrations.runtime.session import Session
    from integrations.runtime.site import Site

_DECIDED = "a mask was made by it, or the like, and goes with no other: kept exactly"


def runs_transformed() -> bool:
    """Whether functorch or forward-mode differentiation is at work, which no plan can be followed under; says so."""
    transformed = peek_interpreter_stack() is not None or in_forward_mode()
    if transformed:
        warn(
            "a model with a plan runs under torch.func or forward-mode differentiation, which give its operators other "
            "tensors than those that were planned: it keeps everything, as without a plan"
        )
    return transformed


class Following:
    """A forward that follows a plan, inside of a session that stores what it keeps. A context, once the session is one.

    Args:
        model: of the forward.
        plans: that the plan is one of.
        followed: by the forward.
        level: as which everything waits that the plan has no store for, what it recomputes included; ``None``: it
            waits as it is.
        compiled: whether torch compiles the forward, which then follows ``plan`` by itself.
        keeps: how what is kept waits, where the plan has no store for it and ``level`` is ``None``; ``None``: as it is.
    """

    def __init__(
        self,
        model: nn.Module,
        plans: Plans,
        followed: Followed,
        level: Level | None = None,
        compiled: bool = False,
        keeps: Way | None = None,
    ) -> None:
        self._model, self._plans, self._followed, self._level = model, plans, followed, level
        self._compiled, self._keeps = compiled, keeps
        self._tape: Tape | None = None
        self._others = 0
        self._contexts = ExitStack()

    @property
    def plan(self) -> Plan:
        """What the forward follows, as a plan: of the state that its gradients are in."""
        plan, schedule, _ = self._followed
        return plan if schedule.graph.standing else plan.accumulating

    @property
    def schedule(self) -> Schedule:
        """What the forward follows, the same object in each."""
        return self._followed.schedule

    @property
    def plain(self) -> Schedule | None:
        """What is followed, where everything waits as it does without a plan; else ``None``."""
        schedule = self._followed.schedule
        # Attention that is recomputed is another than torch's, whatever else waits.
        changes = self._level is not None or schedule.recomputed or schedule.stores or schedule.graph.rounded
        return None if changes or self._keeps is not None else schedule

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
        if self._compiled:
            return
        units = units_of(self._model)
        plan, schedule, _ = self._followed
        if self._level is None:
            rounds = schedule.graph.rounded or self._keeps is not None
        else:
            rounds = self._level.rounds_checkpoints
        own_attention = schedule.graph.rounded if self._level is None else plan.compressed
        if rounds:
            schedule = schedule.where_rounded
        schedule = schedule.within(units)
        session.tracker.pack = session.hook if own_attention else None
        self._others = session.specs.others
        with ExitStack() as contexts:
            contexts.enter_context(fresh_casts())
            if session.specs.need_no_tape and session.replays and not schedule.needs_tape:
                session.fates = _Placed(session, schedule, self._without_store(session))
            else:
                contexts.enter_context(self._taped(session, schedule, rounds, bool(units)))
            self._contexts = contexts.pop_all()

    @contextmanager
    def _taped(self, session: Session, schedule: Schedule, rounds: bool, cut: bool) -> Iterator[None]:
        """A block whose operators are followed one by one; but for those of hooks that whole parameters are there by,
        where the model's are cut."""
        others = self._without_store(session)
        tape = self._tape = Tape(schedule, _Read(session, schedule, others.rounded))
        found = _Taped(session, schedule, others, tape, rounds)
        session.fates, session.aside = found, unseen
        if session.checkpoints is not None:
            session.checkpoints.around = aside
        if self._level is None:
            session.tracker.recomputation = found.recomputation
        with hooks_unseen(self._model, tape) if cut else nullcontext(), tape:
            yield

    def _without_store(self, session: Session) -> _WithoutStore:
        """How values wait that the plan has no store for."""
        if self._level is not None:
            return _WithoutStore(session.way, session.way, later=True, rounded=True)
        # Of what is recomputed, and then waits as it is, signs and the like may have to be stored now.
        kept_so, recomputed = self._keeps or kept(session.level), exactly(session.level)
        return _WithoutStore(kept_so, recomputed, later=False, rounded=self._keeps is not None)

    def end(self, session: Session, complete: bool) -> None:
        """The session is about to be left."""
        if self._compiled:
            return
        self._contexts.close()
        fates, session.fates, session.tracker.recomputation = session.fates, None, None
        if not complete:
            return
        specs, count = session.specs, len(session.records)
        if self._tape is not None:
            self._tape.finish()
            if self._tape.mismatch:
                specs.note_other()  # whose tensors have other values than the plan's
                self._plans.note_mismatch(self._followed, self._tape.mismatch)
            elif specs.others == self._others:  # of no thread that has left its sites meanwhile
                specs.placed = count if isinstance(fates, _Taped) and fates.placed else None
        elif specs.placed not in (None, count) or (isinstance(fates, _Placed) and fates.is_other):
            specs.note_other()


class _WithoutStore(NamedTuple):
    """How values wait that a plan has no store for.

    Attributes:
        kept: those that it keeps.
        recomputed: those that are recomputed.
        later: whether the latter are stored once they are; otherwise they are there until backward has read them.
        rounded: whether the former may be.
    """

    kept: Way
    recomputed: Way
    later: bool
    rounded: bool


class _Fates:
    """What a plan says of the tensors that autograd saves in one forward.

    Args:
        session: that stores them.
        schedule: that is followed.
        others: how values wait that it has no store for.
    """

    def __init__(self, session: Session, schedule: Schedule, others: _WithoutStore) -> None:
        self._session, self._schedule, self._others = session, schedule, others
        self._unplanned = Fate(session.way)
        self._fates: dict[tuple[Store | None, bool], Fate] = {}

    def _of(self, value: int) -> Fate:
        """What becomes of a tensor in a value's memory."""
        if value == UNPLANNED:
            return self._unplanned
        schedule = self._schedule
        value = schedule.final(value)
        key = schedule.stores.get(value), value in schedule.recomputed
        fate = self._fates.get(key)
        if fate is None:
            fate = self._fates[key] = self._fate(*key)
        return fate

    def _fate(self, store: Store | None, recomputed: bool) -> Fate:
        if store is not None:
            return Fate(way_of(store, self._session.level))
        return Fate(self._others.recomputed if recomputed else self._others.kept)


class _Placed(_Fates):
    """The same by the sites of tensors, in a forward of which nothing is recomputed: who knows the values of all that
    it saves needs no tape. One that turns out to be another goes on as it would without a plan.

    Attributes:
        is_other: whether the forward has saved a tensor that no forward with a tape has.
    """

    values = placeholder = None

    def __init__(self, session: Session, schedule: Schedule, others: _WithoutStore) -> None:
        super().__init__(session, schedule, others)
        self.is_other = False

    def of(self, tensor: Tensor, site: Site | None) -> Fate:
        """What becomes of one."""
        if site is None:
            self.is_other = True
            return self._unplanned
        return self._of(UNPLANNED if site.value is None or not is_plain(tensor) else site.value)


class _Taped(_Fates):
    """The same by a tape that follows the forward.

    Args:
        session, schedule, others: as for all.
        tape: that follows the forward.
        rounds: whether what a repetition reads may be rounded.

    Attributes:
        values: by the addresses of the storages that they are in.
        placeholder: makes what autograd holds of a tensor that is recomputed.
        placed: whether each tensor that was asked for had a site.
    """

    def __init__(self, session: Session, schedule: Schedule, others: _WithoutStore, tape: Tape, rounds: bool) -> None:
        super().__init__(session, schedule, others)
        self._tape, self._rounds = tape, rounds
        self.values, self.placeholder = tape.values, tape.handle
        self.placed = True

    def of(self, tensor: Tensor, site: Site | None) -> Fate:
        """What becomes of one."""
        self.placed = self.placed and site is not None
        return self._of(self._tape.value_of(tensor))

    def recomputation(self, read: Sequence[Tensor], made: Sequence[Tensor]) -> Results | None:
        """How backward recomputes what an operator has just made; ``None`` where it does not, where what was read
        waits for others in another form than it has when it is recomputed, or where it would stay for this alone."""
        schedule, values = self._schedule, self._schedule.graph.values
        first = self._tape.value_of(made[0])
        if first == UNPLANNED or schedule.store_of(first) is not None or values[first].saved < 0:
            return None
        for tensor in read:
            value = self._tape.value_of(tensor)
            if value == UNPLANNED or value in schedule.becomes:
                return None
            if schedule.is_recomputed(value) and schedule.store_of(value) is not None:
                return None
        return self._tape.recomputation(made)

    def _fate(self, store: Store | None, recomputed: bool) -> Fate:
        fate = super()._fate(store, recomputed)
        if not recomputed:
            return fate
        later = store is not None or self._others.later
        return fate._replace(placeholder=self.placeholder, waits=later, aside=self._rounds)


class _Read(Exactly):
    """What repetitions of one forward read, which they get in the form in which autograd has it, too.

    Args:
        session, schedule: as for all.
        rounded: whether that may be rounded which the plan keeps and has no store for.
    """

    def __init__(self, session: Session, schedule: Schedule, rounded: bool) -> None:
        self._session, self._schedule, self._rounded = session, schedule, rounded
        self._known: dict[tuple[int, Geometry, bool], Packed] = {}

    def read(self, tensor: Tensor, value: int) -> Packed:
        """Its stored form."""
        key = value, Geometry.of(tensor), tensor.requires_grad
        found = self._known.get(key)
        if found is None:
            final, values = self._schedule.final(value), self._schedule.graph.values
            decided = values[value].exact and self._may_be_rounded(final)
            with DisableTorchFunction(), torch.no_grad():
                stored = self._session.pack_held(tensor, _DECIDED if decided else "")
            found = self._known[key] = stored.beside() if isinstance(stored, View) else stored
            if values[final].saved < 0:  # autograd alone would not keep it
                self._session.records[-1].original_bytes = 0
        return found

    def _may_be_rounded(self, value: int) -> bool:
        store = self._schedule.stores.get(value)
        return self._rounded if store is None else not store.exact
