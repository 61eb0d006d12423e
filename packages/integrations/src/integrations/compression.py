"""``Compression``: a model's live handle. It runs forwards under compression, reports, and saves its state."""

from __future__ import annotations

import functools
import inspect
import itertools
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn

from actcore import current_rank
from integrations.levels import Level, resolve_level
from integrations.outcome import why_not_offloaded, why_not_smaller
from integrations.report import Report, Row
from integrations.saved.calls import tensors_in
from integrations.saved.modules import ModulePaths, called_module
from integrations.saved.records import Record
from integrations.saved.session import Session

_STATE_VERSION = 1
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
    """

    def __init__(self, model: nn.Module, level_name: str, level: Level, strict: bool = False) -> None:
        self.model = model
        self.level_name = level_name
        self.level = level
        self.strict = strict
        self.step = 0
        self.closed = False
        self._records: list[Record] = []
        self._sessions: dict[int, Session] = {}  # by thread, while a forward runs
        self._paths = ModulePaths(model)
        self._told: set[str] = set()  # what has been warned of
        self._register()

    # ---- a forward ----

    @property
    def active(self) -> bool:
        """Whether a forward that starts now is compressed: a level is set, and there will be a backward."""
        return not self.level.off and torch.is_grad_enabled() and self.model.training and not self.closed

    def run(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Calls ``forward`` under compression; plainly inside another, in ``eval()`` and under ``no_grad``."""
        if not self.active:
            return forward(*args, **kwargs)
        running = self._sessions.get(threading.get_ident())
        if running is not None:
            return forward(*args, **kwargs)
        with self.session() as session:
            session.owners.add_inputs(tensors_in((args, kwargs)))
            return forward(*args, **kwargs)

    def session(self) -> _RunningSession:
        """A context in which what autograd saves is compressed: a forward, or a whole step."""
        return _RunningSession(self)

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

    # ---- what the user asks ----

    def report(self) -> Report:
        """What the last compressed forward saved, and where the bytes went; in a block, what it has saved so far."""
        rows = [Row.of(record) for record in self._records]
        return Report(self.level.title(self.level_name), rows, self.level.off, offload=self.level.offload)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to round as this one would have: plain values only."""
        options = {name: getattr(self.level, name) for name in Level.__dataclass_fields__}
        return {"version": _STATE_VERSION, "level": self.level_name, "options": options, "step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over another handle's level and step.

        Raises:
            TypeError: the state, or its options, are no mapping.
            ValueError: the state is of another version, lacks a key, or names an unknown level or option.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"state must be what state_dict returned, got {type(state).__name__}")
        missing = [key for key in ("version", "level", "options", "step") if key not in state]
        if missing:
            raise ValueError(f"state must have version, level, options and step; it lacks {', '.join(missing)}")
        if state["version"] != _STATE_VERSION:
            raise ValueError(f"state must be of version {_STATE_VERSION}, got {state['version']!r}")
        if not isinstance(state["options"], Mapping):
            raise TypeError(f"the state's options must be a mapping, got {state['options']!r}")
        step = state["step"]
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise ValueError(f"the state's step must be an int, 0 or more, got {step!r}")
        self.level = resolve_level(state["level"], state["options"])
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


@torch.compiler.assume_constant_result
def _tell_compiled(key: str) -> bool:
    """Warns that a compiled model runs uncompressed. torch.compile calls this while it traces, as what it is: a
    constant of the compiled code, which holds no call of it and is not broken by one."""
    handle = _handles.get(key)
    if handle is not None:
        handle.warn_once(
            "compiled",
            f"{type(handle.model).__name__} runs uncompressed under torch.compile: compile its submodules instead "
            "(module.compile()), which leaves what lies around them compressed",
        )
    return True


class _RunningSession:
    """Registers a session with its handle while it runs, and keeps its records after."""

    def __init__(self, handle: Compression) -> None:
        self._handle = handle
        self._session = Session(handle.model, handle._paths, handle.level, handle._take_step(), current_rank())

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


class CompressedForward:
    """Stands in a model's ``forward``: the original, under compression.

    An attribute of the instance, so that a ``with`` block closes the hooks whatever ends the forward; forward hooks are
    not called for a ``KeyboardInterrupt``. Signature, copies and pickles are those of the original.
    """

    def __init__(self, handle: Compression, forward: Callable[..., Any], replaced: bool) -> None:
        functools.update_wrapper(self, forward, updated=())
        self.handle = handle
        self.forward = forward
        self.replaced = replaced  # whether the instance had a forward of its own before

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            if self.handle.active:
                _tell_compiled(self.handle.key)
            return self.forward(*args, **kwargs)
        if torch._C._get_tracing_state() is not None:
            return self.forward(*args, **kwargs)
        module = called_module()
        if module is not None and module is not self.handle.model and not self.replaced and _is_copy(module, self):
            return self._run_copy(module, args, kwargs)
        return self.handle.run(self.forward, args, kwargs)

    def _run_copy(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """For a shallow copy, such as ``nn.DataParallel``'s replicas: it has this object in its dictionary, too, but
        its own parameters, which the handle does not know."""
        warnings.warn(
            f"a shallow copy of the compressed {type(module).__name__} (copy.copy, nn.DataParallel) runs uncompressed; "
            "use copy.deepcopy, or DistributedDataParallel",
            stacklevel=3,
        )
        return type(module).forward(module, *args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.forward)


def _is_copy(module: nn.Module, forward: CompressedForward) -> bool:
    """Whether the module carries this very forward: not so for one that wraps the model and calls its forward."""
    return module.__dict__.get("forward") is forward
