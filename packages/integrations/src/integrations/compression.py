"""``Compression``: a model's live handle. It runs forwards under compression, reports, and saves its state."""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn

from actcore import SavedTensor, current_rank
from integrations.adaptive.adapt import Adapter
from integrations.adaptive.monitor import GradientError, measure_error
from integrations.adaptive.plan import Plan
from integrations.adaptive.planned import PlannedBits
from integrations.adaptive.probe import Probe
from integrations.levels import Level, resolve_level
from integrations.outcome import why_not_offloaded, why_not_smaller
from integrations.report import Report, Row
from integrations.saved.calls import tensors_in
from integrations.saved.modules import ModulePaths
from integrations.saved.policy import FixedBits
from integrations.saved.records import Record
from integrations.saved.session import Session

_STATE_VERSION = 2  # 1 had no plan
_STEPS = threading.Lock()
_keys = itertools.count()
_handles: WeakValueDictionary[str, Compression] = WeakValueDictionary()  # by key


class Compression:
    """How one model's saved tensors are stored.

    Made by ``compress_model`` and ``compress``; found again by ``compression(model)``. A deep copy or an unpickled
    model has one of its own, with the same level and step and no shared state.

    Attributes:
        level_name: the level's name.
        level: the level, options applied.
        step: forwards compressed so far; each draws noise of its own.
        strict: whether a forward that compression makes no smaller raises, rather than warns once.
        closed: whether the model was restored; a forward that somebody still holds is the plain one then.
        redraw: from a saved tensor to a number; another number, other noise in the same step. For measurements.
    """

    def __init__(self, model: nn.Module, level_name: str, level: Level, strict: bool = False) -> None:
        self.model = model
        self.level_name = level_name
        self.level = level
        self.strict = strict
        self.step = 0
        self.closed = False
        self.redraw: Callable[[SavedTensor], int] | None = None
        self._adapter = Adapter()
        self._paused = False  # while an exact gradient is taken for comparison
        self._records: list[Record] = []
        self._sessions: dict[int, Session] = {}  # by thread, while a forward runs
        self._paths = ModulePaths(model)
        self._told: set[str] = set()  # what has been warned of
        self._register()

    # ---- a forward ----

    @property
    def active(self) -> bool:
        """Whether a forward that starts now is compressed: a level is set, and there will be a backward."""
        off = self.level.off or self.closed or self._paused
        return not off and torch.is_grad_enabled() and self.model.training

    def run(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Calls ``forward`` under compression; plainly inside another, in ``eval()`` and under ``no_grad``."""
        if not self.active:
            return forward(*args, **kwargs)
        running = self._sessions.get(threading.get_ident())
        if running is not None:
            return forward(*args, **kwargs)
        with self.session(measured=True) as session:
            session.owners.add_inputs(tensors_in((args, kwargs)))
            return forward(*args, **kwargs)

    def session(self, measured: bool = False) -> _RunningSession:
        """A context in which what autograd saves is compressed: a forward, or a whole step. Where ``measured``,
        backward comes after it, and an adaptive level may look at it."""
        step = self._take_step()
        plan, probe = self._adapter.start_forward(self.level, step) if measured else (self.plan, None)
        return _RunningSession(self, step, plan, probe)

    def judge(self, records: Sequence[Record]) -> None:
        """Says so if a forward that has ended was compressed to no effect.

        Raises:
            RuntimeError: it was, and the handle is strict.
        """
        name = f"{type(self.model).__name__} at {self.level.title(self.level_name)}"
        stuck = why_not_offloaded(records) if self.level.offload else ""
        if why := why_not_smaller(records):
            message = f"{name}: nothing is stored in fewer bytes: {why}"
            if self.strict:
                raise RuntimeError(f"{message}; without strict=True this is a warning, and level L0 is off")
            if not (stuck and self.level.bits is None):  # said below: the level was to do nothing else
                self.warn_once("smaller", message)
        if stuck:
            self.warn_once("offload", f"{name}: nothing is offloaded: {stuck}")

    def warn_once(self, subject: str, message: str) -> None:
        """Warns, unless this handle has warned of the subject before."""
        if subject not in self._told:
            self._told.add(subject)
            warnings.warn(message, stacklevel=2)

    def _take_step(self) -> int:
        """The number of a new forward; no two get the same, in whichever thread they start."""
        with _STEPS:
            step = self.step
            self.step += 1
        return step

    # ---- adaptive levels ----

    @property
    def plan(self) -> Plan | None:
        """The plan in force at an adaptive level; ``None`` before the first measurement, and at other levels."""
        return self._adapter.plan(self.level)

    def adapt(self, closure: Callable[[], Any], passes: int = 1) -> Plan:
        """Measures how much each tensor's rounding changes the gradient, and gives each its bits.

        ::

            def closure():
                optimizer.zero_grad()
                criterion(model(x), y).backward()

            handle.adapt(closure)

        In an unchanged loop this happens by itself, in the second step and every ``adapt_interval`` steps. The state of
        training is as before afterwards: ``.grad``, buffers such as batch norm's statistics, the random generators of
        torch, NumPy and Python, and this handle's step. At most one more copy of the gradients is held meanwhile.

        Args:
            closure: runs a forward of the model and its backward; it may call ``zero_grad``, but steps no optimizer.
            passes: how often it is called, 1 to 10; the mean is taken, which evens out dropout and the data. A pass
                that is measured takes about as long as ten others.

        Returns:
            The plan, in force from the next forward on.

        Raises:
            ValueError: the level is not adaptive, or ``passes`` is out of range.
            RuntimeError: the closure steps an optimizer or changes a parameter, which is prevented; it runs no forward
                and backward of this model; its gradients are not finite; or ranks run different tensors. What the
                closure itself raises comes through.
        """
        step = self.step
        try:
            return self._adapter.adapt(self.level, step, self.model, closure, passes)
        finally:
            self.step = step

    def gradient_error(self, closure: Callable[[], Any] | None = None) -> GradientError:
        """The relative error of the whole gradient that compression causes.

        Args:
            closure: as for ``adapt``. It is called twice with equal random generators, exactly and compressed, and the
                two gradients are compared; the state of training is as before afterwards. Without it, the answer is the
                plan's prediction for the step that was measured last, and says so.

        Raises:
            ValueError: there is neither a closure nor a plan.
            RuntimeError: as for ``adapt``.
        """
        if closure is not None:
            return measure_error(self, closure)
        if self.plan is None:
            raise ValueError(
                "closure must be given while there is no plan to predict from: handle.gradient_error(closure)"
            )
        return GradientError(self.plan.relative_error, measured=False)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A block in which the model runs uncompressed."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    # ---- what the user asks ----

    def report(self) -> Report:
        """What the last compressed forward saved, and where the bytes went; in a block, what it has saved so far."""
        rows = [Row.of(record) for record in self._records]
        level, title = self.level, self.level.title(self.level_name)
        return Report(title, rows, level.off, level.offload, self._plan_in_words())

    def _plan_in_words(self) -> str:
        if not self.level.adaptive:
            return ""
        plan = self.plan
        if plan is None:
            return "No plan yet: fixed bits until the second step has been measured, or handle.adapt(closure)."
        return (
            f"Bits by the plan that was made in step {plan.step}: predicted relative error of the gradient "
            f"{plan.relative_error:.2g}. handle.plan has the reasons."
        )

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to round as this one would have: plain values only."""
        options = {name: getattr(self.level, name) for name in Level.__dataclass_fields__}
        return {
            "version": _STATE_VERSION,
            "level": self.level_name,
            "options": options,
            "step": self.step,
            "adaptive": self._adapter.state(self.level),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over another handle's level, step and plan.

        Raises:
            TypeError: the state, or its options, are no mapping.
            ValueError: the state is of another version, lacks a key, or names an unknown level or option; or its plan
                is of another model, whose tensors the message names.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"state must be what state_dict returned, got {type(state).__name__}")
        missing = [key for key in ("version", "level", "options", "step") if key not in state]
        if missing:
            raise ValueError(f"state must have version, level, options and step; it lacks {', '.join(missing)}")
        if state["version"] not in (1, _STATE_VERSION):
            raise ValueError(f"state must be of version {_STATE_VERSION}, got {state['version']!r}")
        if not isinstance(state["options"], Mapping):
            raise TypeError(f"the state's options must be a mapping, got {state['options']!r}")
        step = state["step"]
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise ValueError(f"the state's step must be an int, 0 or more, got {step!r}")
        level = resolve_level(state["level"], state["options"])
        self._adapter.load(state.get("adaptive"), self.model)
        self.level = level
        self.level_name = state["level"]
        self.step = step

    def __repr__(self) -> str:
        return f"Compression({type(self.model).__name__}, level={self.level_name!r}, step={self.step})"

    def __getstate__(self) -> dict[str, Any]:
        # A copy starts without what belongs to a running forward of this one.
        state = {**self.__dict__, "_records": [], "_sessions": {}}
        del state["_paths"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._paths = ModulePaths(self.model)
        self._register()

    def _register(self) -> None:
        self.key = str(next(_keys))
        _handles[self.key] = self


class _RunningSession:
    """Registers a session with its handle while it runs, and keeps its records after."""

    def __init__(self, handle: Compression, step: int, plan: Plan | None, probe: Probe | None) -> None:
        self._handle = handle
        self._session = Session(
            handle.model,
            handle._paths,
            handle.level,
            step,
            current_rank(),
            policy=None if plan is None else PlannedBits(FixedBits(handle.level), plan),
            observer=probe,
            redraw=handle.redraw,
        )

    def __enter__(self) -> Session:
        self._session.__enter__()
        self._handle._sessions[threading.get_ident()] = self._session
        self._handle._records = self._session.records
        return self._session

    def __exit__(self, *error: Any) -> None:
        self._handle._sessions.pop(threading.get_ident(), None)
        self._session.__exit__(*error)
        if error[0] is None:
            self._handle.judge(self._session.records)


def handle_of(key: str) -> Compression | None:
    """The handle with that key, if it is alive."""
    return _handles.get(key)
