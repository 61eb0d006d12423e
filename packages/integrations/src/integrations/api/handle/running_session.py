"""``RunningSession``: a session of a handle, while it runs; at an adaptive level, also why its forward cannot be
measured."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

from integrations.api.handle.effectiveness_check import warn_if_ineffective
from integrations.api.handle.handle_state import HandleState
from integrations.capture.graphs.sharding import find_noise_rank
from integrations.planner.errors import BudgetError
from integrations.planner.plan import Plan as FollowedPlan
from integrations.planner.sensitivity.bit_plan import BitPlan, PlannedBits
from integrations.planner.sensitivity.finite import Look
from integrations.planner.sensitivity.probe import Probe
from integrations.policies.policy import Policy
from integrations.policies.rules import CHECKPOINT
from integrations.runtime.compiled.hooks import may_be_replayed, session_here
from integrations.runtime.compiled.stored import ROLE
from integrations.runtime.region_session import RegionSession
from integrations.runtime.repeating.thread_state import require_no_plan
from integrations.runtime.session import Session
from integrations.runtime.specs import Specs
from integrations.runtime.timed import TimedSession
from integrations.tracing.storage.records import Record
from integrations.tracing.storage.storage_policy import StoragePolicy
from integrations.tracing.tensors import MOST_NODES

if TYPE_CHECKING:
    from integrations.runtime.plan_executor import PlanExecutor

_COPIED = 0.01
"""The part of a plan's peak that copies may take which are made in case memory runs out."""


def specs_under(
    handle: HandleState, plan: BitPlan | None, way: StoragePolicy | None = None, followed: object = None
) -> Specs:
    """The specs for a forward: the handle's, with the bits of a plan if there is one, or with ``way`` if that is given.

    Args:
        handle: the handle.
        plan: a plan of bits.
        way: how tensors are stored.
        followed: what the forward follows, the same object in each forward; ``None`` for nothing.
    """
    if way is not None:
        policy: Policy = way.policy
    else:
        fixed = handle.fixed_policy
        policy = fixed if plan is None else PlannedBits(fixed, plan)
    return handle._specs.under(policy, followed)


class EarlierRun:
    """A run of a forward that another run replaces.

    Attributes:
        step: the forward's number.
        raised: whether memory ran out in it.
    """

    def __init__(self, session: Session, raised: bool = False) -> None:
        self.step, self.raised = session.step, raised
        self._saved = weakref.ref(session.storages.last)  # each region that autograd holds refers to it

    def require_gone(self, model: nn.Module) -> None:
        """Requires that nothing holds tensors of this run, which are stored too coarsely.

        Raises:
            RuntimeError: something does, which the state before the forward does not cover.
        """
        if not self.raised and self._saved() is not None and gc.collect() is not None and self._saved() is not None:
            raise RuntimeError(
                f"{type(model).__name__}'s forward took another path than the planned one and ran a second time, but "
                "an object, such as a global list, still holds a tensor of the first run with its autograd graph: a "
                "gradient through this tensor would exceed the bound on the error. Later forwards use at least 8 "
                "bits. To use them from the start, pass stores=('recompute', 'exact', '8 bits', 'host') to "
                "compress_model; or detach the tensor"
            )


class RunningSession:
    """A session that is registered with its handle while it runs, and whose records the handle keeps afterwards."""

    def __init__(
        self,
        handle: HandleState,
        step: int,
        plan: BitPlan | None,
        probe: Probe | None,
        look: Look | None,
        following: PlanExecutor | None = None,
        compiled: bool = False,
    ) -> None:
        self._handle, self._probe, self._following = handle, probe, following
        self._open = self._raised = self._shared = False
        self._given: object = ()  # the arguments of the forward, while it runs
        way = None if following is None else following.way(handle.stores_at)
        specs = specs_under(handle, plan, way, None if following is None else following.schedule)
        level = handle.stores_at if way is None else way.level

        rank = find_noise_rank(handle.model)

        def make() -> Session:
            kind = Session if handle._timed is None else TimedSession
            look_at = None if look is None else look.at
            known = handle.model, handle._paths, specs, level, step, rank
            session = kind(*known, observer=probe, redraw=handle._redraw, look=look_at)
            session.storages.last.double = handle._double
            # The plan of another rank may keep what this rank would gather.
            session.gathers_again = handle._plan_manager is None and level.recompute is True
            return session

        trial = None if following is None else following.trial
        if compiled and specs.only_regions and handle._timed is None and trial is None and session_here() is None:
            self._session: Session = RegionSession(specs, level, step, rank, make, probe, handle._redraw)
            return
        self._session = make()
        if trial is not None:
            handle._double.try_forward(trial, self._session.storages.last)
        if handle._timed is not None and isinstance(self._session, TimedSession):
            handle._timed.append(self._session)

    @property
    def plan(self) -> FollowedPlan | None:
        """What the forward follows; ``None`` if it follows no plan."""
        return None if self._following is None else self._following.plan

    @property
    def step(self) -> int:
        """The forward's number."""
        return self._session.step

    @property
    def nodes(self) -> int | None:
        """How many autograd nodes the planned forward makes, as far as it is known."""
        return self._session.specs.nodes

    @property
    def repeats(self) -> bool:
        """Whether the forward, which is over, has to run a second time."""
        return self._following is not None and self._following.repeats

    def keep_state(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Keeps what the forward may change, if it may have to run a second time."""
        following, recomputing = self._following, self._handle._plan_manager
        if following is None or recomputing is None:
            return
        if following.is_coarse:
            following.state = self._handle._states.before(args, dict(kwargs))
        elif recomputing.may_take_less(following.plan):
            most = int(_COPIED * following.plan.peak)
            following.state = self._handle._states.before(args, dict(kwargs), most)

    def take_less(self) -> str:
        """Plan for less memory from the next forward on. Return why that is not done, or why the forward, in which
        memory ran out, cannot run a second time; empty if both are done."""
        following, recomputing = self._following, self._handle._plan_manager
        if following is None or recomputing is None:
            return "it has no plan"
        if following.plan.memory is None:
            return "its plan has no memory budget that could be lowered"
        if recomputing.took_less:
            return "it was planned for less before"
        if following.state is None or not recomputing.may_take_less(following.plan):
            return "it is not one of the first steps of its plan"
        why = "another thread has run the model meanwhile" if self._shared else following.state.obstacle()
        if not why:
            try:
                following.take_less()
            except BudgetError:
                return "no plan takes 10 % less"
            recomputing.took_less = self._raised = True
        return why

    def undo(self) -> EarlierRun:
        """Restores the state before the forward, which is over and runs a second time."""
        if self._raised:
            gc.collect()  # what the first run has made may be held by cycles of its frames
        timed = self._handle._timed
        if timed is not None and isinstance(self._session, TimedSession):
            timed.remove(self._session)
        self._handle._records = self._before
        if self._following is not None and self._following.state is not None:
            self._following.state.restore()
        return EarlierRun(self._session, self._raised)

    def run(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call a forward under the session."""
        with self:
            self.add_inputs(args, kwargs)
            result = forward(*args, **kwargs)
        if self._following is not None and not self.repeats:
            self._following.state = None  # it holds gradients, which may be cleared before backward
        return result

    def add_inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Declare what the caller gave to the forward, which is about to run."""
        self._given = args, kwargs
        self._session.add_inputs(self._given)

    def __enter__(self) -> Session:
        require_no_plan()
        self._before = self._handle._records
        self._shared = bool(self._handle._sessions)
        self._open = True
        try:
            self._session.__enter__()
            if self._following is not None:
                self._following.begin(self._session)
            self._handle._sessions[threading.get_ident()] = self._session
            self._handle._records = self._session.records
        except BaseException:
            self.abandon()
            raise
        return self._session

    def __exit__(self, *error: Any) -> None:
        handle = self._handle
        given, self._given = self._given, ()
        handle._sessions.pop(threading.get_ident(), None)
        try:
            if self._following is not None:
                self._shared = self._shared or bool(handle._sessions) or handle.step != self._session.step + 1
                self._following.end(self._session, complete=error[0] is None, shared=self._shared)
        finally:
            try:
                if self._following is not None:
                    self._following.leave()
            finally:
                self._session.__exit__(*error)
                self._open = False
        if not self._session.records and may_be_replayed():
            self._handle._records = self._before  # back to the records of the last forward that saved something
        elif error[0] is None:
            if self._probe is not None:
                _judge_measurement(self._handle, self._probe, self._session.records)
            if not self.repeats and (self._handle.strict or not self._session.regions.known):
                warn_if_ineffective(self._handle, self._session, given)

    def abandon(self) -> None:
        """Leaves it if it was not left: an interrupt may have come while it was entered or left."""
        if self._open:
            self.__exit__(*sys.exc_info())


@contextmanager
def within(session: RunningSession) -> Iterator[Session]:
    """A block in a session, which is left however the block ends: an interrupt may come while it is left."""
    try:
        with session as entered:
            yield entered
    except BaseException:
        session.abandon()
        raise


_TOO_LARGE = (
    f"the forward makes more than {MOST_NODES} autograd nodes, and torch cannot free a graph after so many of its "
    "nodes were read. All tensors keep the level's fixed bits; torch.compile and checkpoints make fewer nodes"
)
_ROUNDED = "GroupAffine"  # the beginning of such a codec's name


def _judge_measurement(handle: HandleState, probe: Probe, records: Sequence[Record]) -> None:
    """When a forward that was to be measured is over, notes why no plan can be made of it, and warns of it once.

    Where another thread's forward has begun meanwhile, it is that which is measured, or one that comes after it.
    """
    if probe.dropped and not probe.too_large:
        return
    handle.obstacle = "" if probe.sees else _TOO_LARGE if probe.too_large else _why_not(records)
    rounded = any(map(_is_rounded, records))
    if handle.obstacle and rounded and handle.bit_plan is None and not handle.in_trial:
        handle.warn_once("plan", f"{handle.name} makes no plan: {handle.obstacle}")


def _why_not(records: Sequence[Record]) -> str:
    places = [_get_place(record) for record in records if _is_rounded(record)]
    if not places:
        return "no tensor is quantized, so there are no bits to plan"
    listed = " or ".join(sorted(set(places)))
    return f"each quantized tensor is {listed}, where nothing can be measured, so all keep the level's fixed bits"


def _is_rounded(record: Record) -> bool:
    """Whether the session has rounded the tensor, rather than a layer that stores for itself."""
    return record.codec.startswith(_ROUNDED) and record.parts is None


def _get_place(record: Record) -> str:
    if record.saved.role == ROLE:
        return "in compiled code"
    if record.saved.operator == CHECKPOINT:
        return "an input of a checkpoint"
    return "where no autograd node is visible, as under torch.vmap"
