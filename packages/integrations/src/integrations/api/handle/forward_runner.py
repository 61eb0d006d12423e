"""``ForwardRunner``: the part of a model's handle that runs its forwards under compression. ``PlainRuns``: forwards
that run without a session, because their plan keeps every tensor as it is."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from integrations._utils.running_module import ModulePaths
from integrations._utils.torch_internals import get_sequence_nr
from integrations.api.handle.adapt import Adapter
from integrations.api.handle.handle_state import HandleState
from integrations.api.handle.module_conversion import Conversions
from integrations.api.handle.monitor import Monitor
from integrations.api.handle.never_compressed_warning import await_forward, await_no_longer, awaits_forward
from integrations.api.handle.retry_with_less import takes_less
from integrations.api.handle.rounding_layers import rounds_in_layers
from integrations.api.handle.running_session import EarlierRun, RunningSession
from integrations.capture.capture import is_capturing
from integrations.capture.graphs.schedule import Schedule
from integrations.capture.graphs.sharding import is_tensor_parallel
from integrations.planner.sensitivity.bit_plan import BitPlan
from integrations.planner.sensitivity.surroundings import meet
from integrations.policies.levels import Level
from integrations.runtime.forward_state import ForwardStates
from integrations.runtime.plan_executor import PlanExecutor, runs_transformed
from integrations.runtime.specs import PlannedSpecs


class PlainRuns:
    """Tell which forwards need no session, since their plan and the one before leave every tensor as it is.

    Nothing watches such a forward except a count of its autograd nodes. If there are more than planned, it has taken a
    larger path, which may take more than the memory budget.
    """

    def __init__(self) -> None:
        self._schedule: Schedule | None = None  # of the forward before, if its plan left everything as it is
        self._nodes: int | None = None  # that the planned forward makes
        self._started: dict[int, PlanExecutor] = {}  # by thread

    def is_as_before(self, following: PlanExecutor | None) -> bool:
        """Return whether the plan of a forward and that of the one before are the same and leave everything as it
        is."""
        before, self._schedule = self._schedule, None if following is None else following.plain
        return self._schedule is not None and self._schedule is before

    def start(self, following: PlanExecutor) -> None:
        """Note that this thread's next forward follows a plan without a session."""
        self._started[threading.get_ident()] = following

    def note_nodes(self, nodes: int | None) -> None:
        """Note how many autograd nodes a forward with a session was planned to make."""
        self._nodes = nodes

    def run(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call a forward without a session, and notice if it takes a larger path than its plan.

        It may make fewer nodes than planned: inside of one autocast, a second forward does not cast weights again.
        """
        following = self._started.pop(threading.get_ident(), None)
        if following is None or self._nodes is None:
            return forward(*args, **kwargs)
        before, planned = get_sequence_nr(), self._nodes
        result = forward(*args, **kwargs)
        if get_sequence_nr() - before > planned:
            self._schedule = None  # the next forward has a session
            following.note_larger()
        return result


_STEPS = threading.Lock()


class ForwardRunner(HandleState):
    """A handle that runs forwards: each gets the session that its level, its plan and what is measured ask for."""

    def __init__(self, model: nn.Module, level_name: str, level: Level, strict: bool = False) -> None:
        super().__init__(model, level_name, level, strict)
        self._adapter = Adapter()
        self._monitor: Monitor | None = None
        self._plain = PlainRuns()

    @property
    def _looks(self) -> bool:
        """Whether a session watches a forward at a level that is off. It watches the first one if layers were
        exchanged, for the report. If layers round, it watches all forwards that are measured or monitored."""
        if not self._records and Conversions.of(self.model) is not None:
            return True
        return (self._monitor is not None or self.in_trial) and rounds_in_layers(self.model)

    # ---- a forward ----

    @property
    def active(self) -> bool:
        """Whether a forward that starts now is compressed: something is to be stored, and there will be a backward."""
        off = (self.off and not self._looks) or self.closed or self._paused
        return not off and torch.is_grad_enabled() and self.model.training and not is_capturing()

    def run(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Calls ``forward`` under compression; plainly inside another compressed forward, in ``eval()`` and under
        ``no_grad``."""
        if self._plan_manager is None:
            return self._run(forward, args, kwargs)
        use = self._plan_manager.users.enter()
        try:
            return self._run(forward, args, kwargs)
        finally:
            use.end()

    def _run(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        session, earlier = self.session_of_forward(args, kwargs), list[EarlierRun]()
        while session is not None:
            session.keep_state(args, kwargs)
            try:
                result = session.run(forward, args, kwargs)
            except BaseException as error:
                session.abandon()
                if not takes_less(self, session, error):
                    raise
            else:
                if not session.repeats:
                    break
                del result
            earlier.append(session.undo())
            session = self.session_of_forward(args, kwargs, earlier=earlier)
        else:
            result = self._plain.run(forward, args, kwargs)
        for run in earlier:
            run.require_gone(self.model)
        if session is not None:
            self._plain.note_nodes(session.nodes)
        self.note_returned(session, args, kwargs, result)
        return result

    def note_returned(
        self, session: RunningSession | None, args: tuple[Any, ...], kwargs: Mapping[str, Any], returned: Any
    ) -> None:
        """Note that a forward is over.

        Args:
            session: its session; ``None`` if it ran plainly.
            args, kwargs: its inputs.
            returned: what the model has returned.
        """
        if self._plan_manager is None:
            return
        if session is not None:
            self._plan_manager.note_returned()
        if not self._trials:
            self._plan_manager.observe_backward(self.model, returned)
            if session is not None:
                self._plan_manager.note_output(session.step, args, dict(kwargs), returned)

    def take_backward_inside(self) -> None:
        """Makes ``run`` take what it calls for a whole step from now on, whose backward may come in it or after it."""
        self._adapter.blocks = True

    def session_of_forward(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        compiled: bool = False,
        earlier: Sequence[EarlierRun] = (),
    ) -> RunningSession | None:
        """The session for a forward that starts now; ``None`` if the forward is not to be compressed, or already is.

        Args:
            args, kwargs: its inputs.
            compiled: whether torch compiles it.
            earlier: its earlier runs, if it runs once more.
        """
        if not self.active or threading.get_ident() in self._sessions:
            return None
        meet(self)
        following = None
        if self._plan_manager is not None and self.level.off and runs_transformed(self._plan_manager.plans is not None):
            return None
        if self._plan_manager is not None:
            any_path = sum(not run.raised for run in earlier) > 1
            following = self._plan_manager.following(
                self.model,
                self.level,
                args,
                dict(kwargs),
                self.bit_plan,
                compiled,
                self._double,
                any_path,
                None if self._trials else earlier[0].step if earlier else self.step,
            )
            alike = self._plain.is_as_before(following) and not self._looks and self._timed is None
            if compiled and following is not None and following.plan.memory is not None:
                alike = False  # compiled code may take more than eager code, and its graph is divided for the budget
            if following is not None and alike and not self._plan_manager.may_take_less(following.plan):
                if not compiled:
                    self._plain.start(following)
                return None  # the forward runs plainly, and the one before has warned of it
        if not self._trials and not earlier:
            self._look_before_step()
        return self.session(
            measured=True, following=following, step=earlier[0].step if earlier else None, compiled=compiled
        )

    @abstractmethod
    def _look_before_step(self) -> None:
        """Have the monitor look at the gradient's error if it is due in front of a training step."""

    def session(
        self,
        measured: bool = False,
        following: PlanExecutor | None = None,
        step: int | None = None,
        compiled: bool = False,
    ) -> RunningSession:
        """The session for a forward, or for a whole step. With ``measured``, backward comes after it, and an adaptive
        level may measure it. With ``following`` it follows a plan. ``step`` is its number if it has one already, and
        ``compiled`` whether torch compiles it."""
        await_no_longer(self)
        meet(self)
        if step is None:
            with _STEPS:  # gives each forward its own number, in whichever thread it starts
                step, self.step = self.step, self.step + 1
        if self.level.adaptive and self.level.bits is not None and is_tensor_parallel(self.model):
            raise ValueError(
                f"level must have fixed bits for a model in tensor parallel, got {self.level_name!r}: each rank "
                "would measure its own part of the activations, and choose other bits for the activations that all "
                "ranks have; use 'L1' or 'lean'"
            )
        measured = measured and (not self._trials or self._adapter.adapting)
        plan, probe = self._adapter.start_forward(self.level, step, self.model) if measured else (self.bit_plan, None)
        if probe is not None:  # the probe looks at what this forward stores
            following = None
        look = self._monitor.look(step) if self._monitor is not None and not self._trials else None
        return RunningSession(self, step, plan, probe, look, following, compiled)

    # ---- adaptive levels ----

    @property
    def in_blocks(self) -> bool:
        return self._adapter.blocks

    @property
    def obstacle(self) -> str:
        """Why an adaptive level cannot make a plan of what the last forward saved, in words; empty if it can."""
        return self._adapter.obstacle

    @obstacle.setter
    def obstacle(self, why: str) -> None:
        self._adapter.obstacle = why

    @property
    def bit_plan(self) -> BitPlan | None:
        """The plan in force at an adaptive level; ``None`` before the first measurement, and at other levels."""
        return self._adapter.plan(self.level)

    # ---- copies ----

    def __getstate__(self) -> dict[str, Any]:
        # A copy starts without the state of a running forward.
        state = {
            **super().__getstate__(),
            "_plain": PlainRuns(),
            "_records": [],
            "_sessions": {},
            "_trials": 0,
            "_timed": None,
            "waits": awaits_forward(self),
        }
        del state["_paths"], state["_states"], state["_specs"], state["_double"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        waits = state.pop("waits")
        super().__setstate__(state)
        self._paths, self._states = ModulePaths(self.model), ForwardStates(self.model)
        self._specs = PlannedSpecs()
        self._double = self._new_double()
        if waits:
            await_forward(self)
