"""``HandleState``: the state of a compressed model that all parts of its handle share. ``key_for`` and ``find_handle``:
the living handles by key, since compiled code cannot hold a handle, but can hold a key as a constant."""

from __future__ import annotations

import itertools
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from weakref import WeakValueDictionary

from torch import nn

from actcore import SavedTensor
from actcore.double_backward import BY_ROUNDED
from integrations._utils.in_model import InModel
from integrations._utils.running_module import ModulePaths
from integrations._utils.warn import warn
from integrations.api.handle.kept_modules import with_kept
from integrations.api.handle.plan_manager import PlanManager
from integrations.planner.budget import Budget
from integrations.planner.plan import Plan as FollowedPlan
from integrations.planner.sensitivity.bit_plan import BitPlan
from integrations.policies.levels import Level
from integrations.policies.policy import FixedBits, fixed_bits
from integrations.runtime.forward_state import ForwardStates
from integrations.runtime.session import Session
from integrations.runtime.specs import PlannedSpecs
from integrations.runtime.timed import TimedSession
from integrations.tracing.double_backward import DoubleBackward
from integrations.tracing.storage.records import Record


class HandleState(InModel, ABC):
    """A model's level, its plan, and what its forwards left behind.

    Attributes:
        level_name: the level's name.
        level: the level, options applied.
        step: forwards compressed so far; each draws noise of its own.
        strict: whether a forward that compression makes no smaller raises, rather than warns once.
        closed: whether the model was restored. A reference to the compressed forward then runs the plain one.
    """

    def __init__(self, model: nn.Module, level_name: str, level: Level, strict: bool = False) -> None:
        super().__init__(model)
        self.level_name = level_name
        self.level = level
        self.strict = strict
        self.step = 0
        self.closed = False
        self._paused = False  # while an exact gradient is taken for comparison
        self._exchanged = ""  # which layers were exchanged, in words, once the model was restored
        # From a saved tensor to a number; another number gives other noise in the same step. For measurements.
        self._redraw: Callable[[SavedTensor], int] | None = None
        self._plan_manager: PlanManager | None = None  # the part that has a plan
        self._specs = PlannedSpecs()  # what is known of the tensors that its forwards save
        self._records: list[Record] = []  # of the last forward, or the one that runs
        self._timed: list[TimedSession] | None = None  # the forwards of a step whose times are measured, while it runs
        self._sessions: dict[int, Session] = {}  # by thread, while a forward runs
        self._paths = ModulePaths(model)
        self._states = ForwardStates(model)  # keeps the state before a forward that may have to run a second time
        self._trials = 0  # trial runs under way
        self._stores_at: tuple[Level, Level, FixedBits] | None = None
        self._told: set[str] = set()  # subjects that were warned of
        self._double = self._new_double()  # whether a backward with create_graph=True reads rounded tensors

    @property
    def stores_at(self) -> Level:
        """The level, with the kept modules named by their paths in the model."""
        return self._named()[1]

    @property
    def fixed_policy(self) -> FixedBits:
        """The policy of ``stores_at``, the same object as long as the level is the same."""
        return self._named()[2]

    def _named(self) -> tuple[Level, Level, FixedBits]:
        """The level, ``stores_at`` and ``fixed_policy``."""
        found, level = self._stores_at, self.level
        if found is None or (found[0] is not level and found[0] != level):
            named = with_kept(level, self.model)
            found = self._stores_at = level, named, fixed_bits(named)
        return found

    @property
    def name(self) -> str:
        """The name for warnings and errors: the model's class and the level."""
        return f"{type(self.model).__name__} at {self.title}"

    @property
    def title(self) -> str:
        """The level with its changed options, or the plan if that alone decides how values wait."""
        if self._plan_manager is not None and self.level.off:
            return self._plan_manager.title()
        return self.level.title(self.level_name)

    @property
    def off(self) -> bool:
        """Whether a forward saves what it would save uncompressed: the level is off, and there is no plan."""
        return self.level.off and self._plan_manager is None

    @property
    def rounds_by_plan(self) -> bool:
        """Whether the plan, and not the level, may round what backward reads."""
        return self.level.off and self._plan_manager is not None and self._plan_manager.rounds

    def warn_once(self, subject: str, message: str) -> None:
        """Warns, unless this handle has warned of the subject before."""
        if subject not in self._told:
            self._told.add(subject)
            self.warn(message)

    def warn(self, message: str) -> None:
        """Warns."""
        warn(message)

    def _new_double(self) -> DoubleBackward:
        """Return a new ``DoubleBackward``. It holds the handle weakly, because saved tensors refer to it."""
        return DoubleBackward(partial(_tell_of_double_backward, weakref.ref(self)))

    @property
    def running(self) -> bool:
        """Whether a forward of the model is being compressed, in whichever thread."""
        return bool(self._sessions)

    @property
    def in_trial(self) -> bool:
        """Whether forwards that start now are not steps of the training."""
        return bool(self._trials)

    @contextmanager
    def trial_run(self) -> Iterator[None]:
        """A block whose forwards are not steps of the training: nothing is monitored, and the step is put back
        afterwards."""
        step = self.step
        self._trials += 1
        try:
            yield
        finally:
            self._trials -= 1
            self.step = step

    @property
    @abstractmethod
    def in_blocks(self) -> bool:
        """Whether a forward is a block, with its backward in it or after it."""

    @property
    @abstractmethod
    def bit_plan(self) -> BitPlan | None:
        """The plan in force at an adaptive level."""

    @property
    def plan(self) -> FollowedPlan | BitPlan | None:
        """The plan that is followed now: that of the last training forward, or before the first one the plan that was
        applied. Of a model at an adaptive level without ``memory`` or the like, the bits of its tensors. ``None`` if
        there is no plan, or none yet."""
        return self.bit_plan if self._plan_manager is None else self._plan_manager.plan

    @property
    def memory(self) -> Budget | None:
        """The memory budget that was asked for; ``None`` without one."""
        return None if self._plan_manager is None else self._plan_manager.memory

    @property
    def error(self) -> float | None:
        """The bound on the gradient's error that was asked for, 0 for exact plans; ``None`` without a plan, and where a
        level says how everything is stored."""
        return None if self._plan_manager is None else self._plan_manager.error

    @property
    @abstractmethod
    def obstacle(self) -> str:
        """Why an adaptive level cannot make a plan; empty where it can."""

    @obstacle.setter
    @abstractmethod
    def obstacle(self, why: str) -> None: ...


def _tell_of_double_backward(reference: weakref.ref[HandleState], rounded: bool) -> None:
    """Warn about a backward with ``create_graph=True``, and make the model's plans round nothing from now on."""
    handle = reference()
    recomputing = None if handle is None else handle._plan_manager
    name = "a compressed model" if handle is None else handle.name
    what = f"{name}: {BY_ROUNDED}"
    if recomputing is not None and recomputing.may_become_exact:
        recomputing.differentiated = True
        message = f"{name}: backward differentiates gradients (create_graph=True); the plan rounds nothing from now on"
        if rounded:
            message = f"{what}. This step's gradients may be far off; from the next forward on the plan rounds nothing"
    elif recomputing is not None and recomputing.codec is not None:
        message = f"{what}. Second derivatives may be far off; apply the plan with codec=None"
    else:
        message = (
            f"{what}. Second derivatives may be far off, even if the level's error is small. Store the modules that "
            "they go through exactly (keep=), use a plan that rounds nothing (memory= and error=0 instead of a level), "
            'or turn compression off (level="L0")'
        )
    if handle is None:
        warn(message)
    else:
        handle.warn_once("double backward", message)


_keys = itertools.count()
_handles: WeakValueDictionary[str, HandleState] = WeakValueDictionary()


def key_for(handle: HandleState) -> str:
    """A new key for a handle."""
    key = str(next(_keys))
    _handles[key] = handle
    return key


def find_handle(key: str) -> HandleState | None:
    """The handle with that key, if it is alive."""
    return _handles.get(key)
