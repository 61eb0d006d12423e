"""``PlanExecutor``: a forward that follows a plan, inside of a session that stores what the plan does not recompute."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from torch import nn

from integrations._utils.autocast import fresh_casts
from integrations._utils.compiling import has_compiled_parts, without_compiled_parts
from integrations._utils.running_module import all_modules
from integrations._utils.torch_internals import (
    get_sequence_nr,
    in_forward_mode,
    len_torch_dispatch_stack,
    peek_interpreter_stack,
)
from integrations._utils.warn import warn
from integrations.capture.dispatch.versions import unseen
from integrations.capture.graphs.schedule import Schedule
from integrations.capture.graphs.sharding import find_units, hooks_unseen
from integrations.planner.plan import Plan
from integrations.planner.plans import Followed, Plans
from integrations.policies.levels import Level
from integrations.runtime.compiled.joint_plans import JOINT
from integrations.runtime.forward_state import ForwardState
from integrations.runtime.planned_decisions import Numbered, Placed, Read, WithoutStore
from integrations.runtime.repeating.call_follower import CallFollower
from integrations.runtime.repeating.recording import Recording
from integrations.runtime.repeating.tape import Tape
from integrations.runtime.repeating.thread_state import aside, here, require_no_plan
from integrations.tracing.double_backward import Kinds
from integrations.tracing.storage.storage_policy import StoragePolicy, exactly, in_eight_bits, kept, on_device

if TYPE_CHECKING:
    from integrations.runtime.session import Session


def runs_transformed(planned: bool = True) -> bool:
    """Return whether functorch or forward-mode differentiation is active, and warn if so. No plan can be followed then.

    Args:
        planned: whether the model has a plan.

    Raises:
        ValueError: one of these is active, and the model has no plan.
    """
    transformed = peek_interpreter_stack() is not None or in_forward_mode()
    if transformed and not planned:
        raise ValueError(
            "no plan can be made of a forward under torch.func or forward-mode differentiation, so no budget can be "
            "kept; put the model in eval() mode, run one training step without them first, or call "
            "integrations.restore_model(model)"
        )
    if transformed:
        warn(
            "a model with a plan runs under torch.func or forward-mode differentiation, where its operators get "
            "other tensors than the planned ones: all saved tensors are kept, as without a plan"
        )
    return transformed


class PlanExecutor:
    """A forward that follows a plan, inside of a session that stores what the plan keeps. ``begin`` and ``end`` are
    called once the session has been entered and before it is left.

    Args:
        model: the model whose forward it is.
        plans: the plans of which this forward follows one.
        followed: the plan that the forward follows.
        level: the level as which a value waits that the plan has no store for, recomputed ones included; ``None``: such
            a value waits as it is.
        compiled: whether torch compiles the forward, which then follows ``plan`` by itself.
        keeps: how a kept value waits that the plan has no store for, where ``level`` is ``None``; ``None``: as it is.
        trial: the kinds of the inputs if the forward rounds nothing because its backward may use
            ``create_graph=True``; otherwise ``None``.

    Attributes:
        trial: as given.
        state: the state before the forward; ``None`` if it was not kept, since the forward never has to run again.
        repeats: whether the forward has to run a second time: it was not the planned one, and tensors were stored too
            coarsely for another path.
    """

    def __init__(
        self,
        model: nn.Module,
        plans: Plans,
        followed: Followed,
        level: Level | None = None,
        compiled: bool = False,
        keeps: StoragePolicy | None = None,
        trial: Kinds | None = None,
    ) -> None:
        self.trial = trial
        self.state: ForwardState | None = None
        self.repeats = False
        self._model, self._plans, self._followed, self._level = model, plans, followed, level
        self._compiled, self._keeps = compiled, keeps
        self._following: Tape | CallFollower | None = None
        self._others = self._nodes = 0
        self._contexts: ExitStack | None = None

    @property
    def plan(self) -> Plan:
        """The plan that the forward follows, for the state that its gradients are in."""
        return self._followed.of_state

    def take_less(self) -> None:
        """Plan for a tenth less memory from the next forward on.

        Raises:
            BudgetError: no plan takes less.
        """
        self._plans.take_less(self._followed)

    @property
    def schedule(self) -> Schedule:
        """The schedule that the forward follows. Every forward gets the same object."""
        return self._followed.schedule

    @property
    def plain(self) -> Schedule | None:
        """The schedule if every tensor waits as it does without a plan; otherwise ``None``."""
        schedule = self._followed.schedule
        # Recomputed attention replaces torch's own, so that such a forward differs from a plain one.
        changes = self._level is not None or schedule.recomputed or schedule.stores or schedule.graph.rounded
        return None if changes or self._keeps is not None else schedule

    def way(self, base: Level) -> StoragePolicy | None:
        """Return how a session stores tensors that the plan does not have, as in a forward that differs from the
        planned one. ``None``: as the level does. At a level that is off, they are stored in 8 bits if ``stores`` and
        the bound on the error allow it, and otherwise in exact forms."""
        if self._level is not None:
            return None
        plan, schedule = self._followed.plan, self._followed.schedule
        if not schedule.graph.rounded or (base.off and not plan.bounds.rounds_unforeseen):
            return exactly(base)
        return in_eight_bits(base) if base.off else None

    @property
    def is_coarse(self) -> bool:
        """Whether the error of a forward that differs from the planned one may be above the bound: the plan bounds it,
        and stores values in fewer than 8 bits or as few-bit derivatives."""
        plan, schedule = self._followed.plan, self._followed.schedule
        return not self._compiled and not plan.compressed and plan.error > 0 and bool(schedule.coarse)

    def begin(self, session: Session) -> None:
        """Begins to follow the plan. The session has been entered."""
        if self._compiled:
            return
        for plan in (self._followed.plan, self._followed.of_state):
            plan.others.pop(JOINT, None)  # of a compiled forward before
        units = find_units(self._model)
        plan, schedule = self._followed.plan, self._followed.schedule
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
        require_no_plan()
        with ExitStack() as contexts:
            contexts.callback(setattr, here, "following", False)
            contexts.enter_context(fresh_casts())
            if session.specs.need_no_tape and session.replays and not schedule.needs_tape:
                session.plan_decisions = Placed(session, schedule, self._without_store(session))
            elif not self._begin_by_calls(session, schedule, rounds, contexts):
                contexts.enter_context(self._taped(session, schedule, rounds, bool(units)))
            self._contexts = contexts.pop_all()
        self._nodes = get_sequence_nr()

    def _begin_by_calls(self, session: Session, schedule: Schedule, rounds: bool, contexts: ExitStack) -> bool:
        """Begins to follow the forward by the functions that it calls, if they are known. Returns whether they are."""
        trace = session.specs.trace
        if trace is None or trace.schedule is not schedule or not session.replays:
            return False
        others = self._without_store(session)
        read, take_over = Read(session, schedule, others.rounded), partial(self._take_over, session)
        following = CallFollower(trace, take_over, read, self._model)
        contexts.callback(following.close)
        self._begin_following(session, schedule, others, following, rounds)
        session.tracker.follower = following
        here.following = True
        return True

    def _take_over(self, session: Session) -> Tape | None:
        """Has a tape follow the rest of a forward that has called another function than expected, or with other
        arguments; ``None`` if that cannot be, since modes have been entered that will be left before."""
        follower, found = self._following, session.plan_decisions
        assert isinstance(follower, CallFollower)
        assert isinstance(found, Numbered)
        if self._contexts is None or len_torch_dispatch_stack() != follower.modes:
            return None
        tape = Tape(follower.schedule, follower.keeping, self._model)
        tape.go_on_from(follower)
        session.packing.replay = None  # it would not hide from the tape
        found.following = self._following = tape
        self._contexts.enter_context(self._under(tape, session, cut=False))
        return tape

    @contextmanager
    def _taped(self, session: Session, schedule: Schedule, rounds: bool, cut: bool) -> Iterator[None]:
        """A block in which the tape follows every operator. Where the model's parameters are sharded, the operators of
        the hooks that gather them are left out."""
        others = self._without_store(session)
        tape = Tape(schedule, Read(session, schedule, others.rounded), self._model)
        self._begin_following(session, schedule, others, tape, rounds)
        recorded = schedule.needs_tape and not (schedule.any_sizes or schedule.communicates or cut)
        compiled = has_compiled_parts(all_modules(self._model)[1:])
        if recorded and session.replays and session.specs.may_trace and not compiled:
            session.tracker.follower = tape.recording = Recording(tape, lambda: self.plan.spare)
        try:
            with self._under(tape, session, cut):
                here.following = True
                yield
        finally:
            if tape.recording is not None:
                tape.recording.close()
            tape.recording = None

    @contextmanager
    def _under(self, tape: Tape, session: Session, cut: bool) -> Iterator[None]:
        """A block in which the tape sees the forward's operators, and no others."""
        session.aside = unseen
        if session.checkpoints is not None:
            session.checkpoints.around = aside
        eager = without_compiled_parts(all_modules(self._model)[1:])  # dynamo traces no operator that a tape follows
        with eager, hooks_unseen(self._model, tape) if cut else nullcontext(), tape:
            yield

    def _begin_following(
        self, session: Session, schedule: Schedule, others: WithoutStore, following: Tape | CallFollower, rounds: bool
    ) -> None:
        """Has the session ask a tape, or what stands in its place, of each tensor."""
        self._following = following
        following.double, following.rounded = session.storages.last.double, rounds or self._level is not None
        session.plan_decisions = found = Numbered(session, schedule, others, following, rounds)
        if self._level is None:
            session.tracker.recomputation = found.recomputation

    def _without_store(self, session: Session) -> WithoutStore:
        """How values wait that the plan has no store for."""
        if self._level is not None:
            return WithoutStore(session.way, on_device(session.way), later=True, rounded=True)
        # A recomputed value waits as it is. Its signs and the like may have to be stored now.
        kept_so, recomputed = self._keeps or kept(session.level), exactly(session.level)
        return WithoutStore(kept_so, recomputed, later=False, rounded=self._keeps is not None)

    def end(self, session: Session, complete: bool, shared: bool = False) -> None:
        """Ends following the plan. The session is about to be left.

        Args:
            session: the session.
            complete: whether the forward has returned.
            shared: whether another thread has run the model meanwhile.
        """
        if self._compiled:
            return
        nodes = get_sequence_nr() - self._nodes
        following = self._following
        if following is not None and complete:
            following.finish()
        recording = following.recording if isinstance(following, Tape) else None
        trace = None if recording is None or not complete else recording.finish()
        self.leave()
        plan_decisions, session.plan_decisions, session.tracker.recomputation = session.plan_decisions, None, None
        session.tracker.follower = None
        if not complete:
            return
        specs, saved = session.specs, tuple(record.saved for record in session.records)
        if following is not None:
            if following.mismatch:
                specs.note_other()  # the tensors of this forward have other values than the plan's
                self._note_mismatch(following.mismatch, following.next, shared)
            elif specs.others == self._others and isinstance(
                following, Tape
            ):  # no other thread left its sites meanwhile
                assert isinstance(plan_decisions, Numbered)
                specs.placed = saved if plan_decisions.placed else None
                alone = session.checkpoints is None or not session.checkpoints.entered
                specs.trace = trace if trace and alone and specs.saves(trace.hidden) else None
                specs.untraced += recording is not None and specs.trace is None
                specs.nodes = nodes
        elif (others := specs.saves_others(saved)) or (self.is_coarse and nodes != specs.nodes):
            specs.note_other()
            found = "it saved other tensors for backward" if others else "it ran other operators"
            larger = nodes > (specs.nodes or nodes) and not has_compiled_parts(all_modules(self._model)[1:])
            if self.is_coarse or larger:  # compiled parts make other nodes than the eager code that a tape follows
                self._note_mismatch(found, len(self.schedule.ops), shared)
            else:
                self._plans.left = found
        elif isinstance(plan_decisions, Placed) and plan_decisions.is_other:
            specs.note_other()
            self._plans.left = "it saved other tensors for backward"

    def _note_mismatch(self, where: str, ran: int, shared: bool) -> None:
        """Notes a forward that differs from the planned one.

        Args:
            where: where it differs, in words.
            ran: how many of the planned operators have run before.
            shared: whether another thread has run the model meanwhile.

        Raises:
            RuntimeError: its error may be above the bound, and it cannot run a second time.
        """
        schedule = self.schedule
        stored = self.is_coarse and any(value in schedule.coarse for op in schedule.ops[:ran] for value in op.makes)
        obstacle = ""
        if stored and self.state is not None:
            obstacle = "another thread has run the model meanwhile" if shared else self.state.obstacle()
            self.repeats = not obstacle
        self._plans.note_mismatch(self._followed, where, self.repeats, told=not obstacle)
        if obstacle:
            plan = self._followed.plan
            raise RuntimeError(
                f"{plan.model}'s forward is not the one that was captured: {where}. It has stored tensors in fewer "
                f"than 8 bits for the planned path, so its error may be above error={plan.error:g}, and it cannot run "
                f"a second time with more bits, since {obstacle}. To use at least 8 bits from the start, pass "
                "stores=('recompute', 'exact', '8 bits', 'host') to compress_model; or pass error=0"
            )

    def note_larger(self) -> None:
        """Note that the forward ran without a session and made more autograd nodes than the planned one."""
        self._note_mismatch("it ran more operators", 0, shared=False)

    def leave(self) -> None:
        """Leaves what ``begin`` has entered, if that was not left: an interrupt may have come before ``end``."""
        if self._contexts is not None:
            self._contexts.close()
