"""``CompressedTraining``: what every trainer's callback does with the model that is trained."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import suppress
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from torch import nn

from integrations._utils.whole_files import write_text
from integrations.api.compress import compress_model, compression, restore_model
from integrations.api.handle.compression import Compression
from integrations.api.handle.module_conversion import Conversions
from integrations.api.handle.plan_arguments import Asked, level_with, planning_for, require_one, with_plan
from integrations.planner.bounds import Bounds
from integrations.policies.levels import resolve_level

Reported = bool | str | PathLike[str] | None

_SUFFIXES = (".json", ".html")
_EXCHANGED = "exchanged"  # a key in a checkpoint, beside the parts of the handle's state
_KEYWORDS = [
    name
    for name, parameter in inspect.signature(compress_model).parameters.items()
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY
]


class CompressedTraining:
    """Compresses a model when its training begins, goes on from a checkpoint, reports, and restores the model.

    Args:
        level: as for ``compress_model``.
        report: where the report of the last forward goes when training ends: a path that ends in ``.json`` or
            ``.html``; ``True`` prints it; ``None`` does neither.
        restore: whether the model is restored then, if ``begin`` has compressed it.
        resume: whether a checkpoint's state is taken over.
        arguments: the other arguments of ``compress_model``.
        asker: who has these arguments, for errors.

    Attributes:
        handle: the handle of the model that is trained, or was trained last; ``None`` before.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: the level or an option is unknown, or a value is out of range: now, not when the model is there.
    """

    def __init__(
        self,
        level: str | None,
        report: Reported,
        restore: bool,
        resume: bool,
        arguments: Mapping[str, Any],
        asker: str = "callback",
    ) -> None:
        for name, value in (("restore", restore), ("resume", resume), ("strict", arguments.get("strict", False))):
            if not isinstance(value, bool):
                raise TypeError(f"{name} must be True or False, got {value!r}")
        self._asker = asker
        self._anew = ", or resume=False, which begins the rounding anew" if asker == "callback" else ""
        memory, time, error, stores = (arguments.get(name) for name in ("memory", "time", "error", "stores"))
        options = {name: arguments[name] for name in arguments if name not in _KEYWORDS}
        checkpoint, fallback, loss = arguments.get("checkpoint"), arguments.get("fallback"), arguments.get("loss")
        in_flight = arguments.get("in_flight")
        self.arguments = {**arguments, "level": level}
        plan = arguments.get("plan")
        others = {"memory": memory, "time": time, "error": error, "stores": stores, "checkpoint": checkpoint}
        if plan is not None:
            checkpoint, level, options = with_plan(plan, level, options, fallback, **others, in_flight=in_flight)
            self.arguments["plan"], fallback, in_flight = checkpoint, None, None  # the file is read once
        bounds = Bounds.asked(memory, time, error, stores, level, options, fallback, loss, in_flight)
        self.asked = require_one(bounds, checkpoint)
        self.level_name = level_with(level, bounds)
        self.level = resolve_level(self.level_name, options)
        self.exchanges = Conversions.asked(
            *(arguments.get(name) for name in ("activations", "linear", "layers", "loss"))
        )
        if self.asked is not None:
            self.exchanges.require_repeatable(plan=plan, **others)
        self.prints = report is True
        self.path = _checked_path(report)
        self.restore, self.resume = restore, resume
        self.handle: Compression | None = None
        self._ours = False  # whether this compressed the model, and so may restore it

    def begin(self, model: nn.Module, state: Mapping[str, Any] | None) -> Compression:
        """The handle of the model, which is compressed from now on.

        Args:
            model: the model that is trained, not what wraps it. One that is compressed already keeps its handle.
            state: the state of the handle in the run that is resumed; ``None`` for a new run.

        Raises:
            ValueError: the model is compressed with other arguments, or the state is of another level.
        """
        handle = None
        with suppress(ValueError):
            handle = compression(model)
        found = handle is not None
        if handle is None:
            handle, self._ours = compression(compress_model(model, **self.arguments)), True
        elif handle is not self.handle:
            self._require_like(handle)
            self._ours = False
        self.handle = handle
        try:
            if state is not None and self.resume:
                self.go_on(handle, state)
        except BaseException:
            if not found:
                restore_model(model)
            raise
        return handle

    def state(self) -> dict[str, Any] | None:
        """The handle's state and what was exchanged, as plain values; ``None`` before training."""
        return None if self.handle is None else {**self.handle.state_dict(), _EXCHANGED: self.exchanges.plain()}

    def conclude(self, writes: bool) -> dict[str, float]:
        """Reports. Returns the last forward's numbers, for logs.

        Args:
            writes: whether this rank prints and writes.
        """
        assert self.handle is not None
        report = self.handle.report()
        if writes and self.prints:
            print(report)
        if writes and self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.suffix == ".html":
                report.html(self.path)
            else:
                write_text(self.path, report.to_json())
        return {
            "compression_ratio": report.ratio,
            "compression_original_bytes": float(report.original_bytes),
            "compression_stored_bytes": float(report.stored_bytes),
        }

    def end(self) -> None:
        """Restores the model if that was asked for. The handle stays, with its report and its state."""
        if self.restore and self._ours and self.handle is not None and not self.handle.closed:
            restore_model(self.handle.model)

    def _require_like(self, handle: Compression) -> None:
        """Checks that a compressed model is compressed in this way."""
        wanted, found = self.level.title(self.level_name), handle.level.title(handle.level_name)
        if handle.level != self.level:
            difference = f"at {found}, and the {self._asker}'s level is {wanted}"
        elif handle.strict != self.arguments.get("strict", False):
            difference = f"with strict={handle.strict}, and the {self._asker}'s is {not handle.strict}"
        elif (None if handle._plan_manager is None else handle._plan_manager.asked) != self.asked:
            difference = f"with another plan than the {self._asker}'s: {_in_words(self.asked)}"
        elif (Conversions.of(handle.model) or Conversions()) != self.exchanges:
            difference = f"with other values of activations, linear, layers or loss than the {self._asker}'s"
        else:
            return
        raise ValueError(
            f"{type(handle.model).__name__} is compressed already, {difference}: give the {self._asker} the "
            "arguments that compress_model got, or call integrations.restore_model(model) before training"
        )

    def go_on(self, handle: Compression, state: Mapping[str, Any]) -> None:
        """Takes over the state of the run that is resumed.

        Raises:
            ValueError: the run had another level, plan or exchanged layers.
        """
        state = dict(state)
        exchanged, ours = state.pop(_EXCHANGED, None), self.exchanges.plain()
        # A checkpoint may be older than an option, and then the run did not use it.
        other = None if exchanged is None else next((name for name in ours if exchanged.get(name) != ours[name]), None)
        if exchanged is not None and other is not None:
            raise ValueError(
                f"{other} must be the same as in the run of the checkpoint, {exchanged.get(other)}, got "
                f"{ours[other]}: give the {self._asker} the value of that run{self._anew}"
            )
        known = {"level", "options"} <= state.keys()
        level = resolve_level(state["level"], state["options"]) if known else self.level
        raised = ((state.get("monitor") or {}).get("settings") or {}).get("raise_bits", False)
        if level != self.level and not raised:  # a monitor that raises bits changes the level by itself
            raise ValueError(
                f"the checkpoint is of a run at {level.title(state['level'])}, and the {self._asker}'s level is "
                f"{self.level.title(self.level_name)}: give the {self._asker} that level and its options{self._anew}"
            )
        asked = (state.get("recomputing") or {}).get("asked")
        wanted = self.asked.content() if isinstance(self.asked, Bounds) else None
        if asked != wanted and (wanted is not None or isinstance(asked, Mapping)):
            theirs = f"plan({Bounds.of(asked)})" if isinstance(asked, Mapping) else "no such plan"
            raise ValueError(
                f"the checkpoint is of a run with {theirs}, but the {self._asker} has {_in_words(self.asked)}: give "
                f"the {self._asker} the same memory, time, error and stores{self._anew}"
            )
        handle.load_state_dict(state)


def _in_words(asked: Asked | None) -> str:
    return "none" if asked is None else planning_for(asked)


def _checked_path(report: Reported) -> Path | None:
    """The path of the report, if it goes to a file."""
    if report is None or isinstance(report, bool):
        return None
    if not isinstance(report, str | PathLike):
        raise TypeError(f"report must be None, True, or a path, got {report!r}")
    path = Path(fspath(report))
    if path.suffix not in _SUFFIXES:
        raise ValueError(f"report must be a path that ends in {' or '.join(_SUFFIXES)}, got {str(path)!r}")
    if path.is_dir():
        raise ValueError(f"report must be a file, and {str(path)!r} is a folder: name one in it")
    return path
