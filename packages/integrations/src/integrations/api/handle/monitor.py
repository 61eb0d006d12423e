"""``Monitor``: checks the gradient's error, and looks for NaN and infinity, every so many steps; warns, or raises the
bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import torch

from actcore import in_cuda_graph
from integrations._utils.checked_json import of_type, read_entry
from integrations._utils.torch_internals import current_graph_task_id, top_saved_tensors_default_hooks
from integrations.api.handle.gradient_error import GradientError, measure_error
from integrations.api.handle.rounding_layers import rounds_in_layers
from integrations.planner.sensitivity.finite import Look, NotFinite
from integrations.planner.sensitivity.ranks import largest
from integrations.policies.levels import Level

if TYPE_CHECKING:
    from integrations.api.handle.compression import Compression

_MOST_BITS = 8


@dataclass(frozen=True)
class Settings:
    """What a user asked of the monitor. See ``Compression.monitor``."""

    every: int
    bound: float | None
    raise_bits: bool

    def __post_init__(self) -> None:
        if isinstance(self.every, bool) or not isinstance(self.every, int):
            raise TypeError(f"every must be an int, or None to end monitoring, got {self.every!r}")
        if self.every < 1:
            raise ValueError(f"every must be 1 step or more, got {self.every}; None ends monitoring")
        if not isinstance(self.raise_bits, bool):
            raise TypeError(f"raise_bits must be True or False, got {self.raise_bits!r}")
        if self.bound is None:
            if self.raise_bits:
                raise ValueError("bound must be a number where raise_bits is True, got None; 0.1 is the default")
            return
        if isinstance(self.bound, bool) or not isinstance(self.bound, int | float):
            raise TypeError(f"bound must be a number or None, got {self.bound!r}")
        if not 0 < self.bound < math.inf:
            raise ValueError(
                f"bound must be positive and finite, got {self.bound}; 0.1 is the default, None sets no bound"
            )


class Monitor:
    """The monitor of one handle.

    A check is due in each forward whose number is a multiple of ``every``. Before that forward runs, the closure is
    measured, or the plan is asked for its prediction. A check that cannot be made there waits for the next forward.

    Attributes:
        settings: what the user asked for.
        closure: the user's, or ``None``. Copies and states do not have it: it runs the model that it was written for.
        error, checked: what the last check found, and the forward before which it ran.
    """

    def __init__(self, settings: Settings, closure: Callable[[], Any] | None, step: int) -> None:
        self.settings = settings
        self.closure = closure
        self.error: GradientError | None = None
        self.checked = 0
        self._next = self._due_after(step)
        self._judged: int | None = None  # the step of the plan whose prediction was checked last
        self._above = False  # whether the last error was above the bound, which was warned of
        self._look: Look | None = None  # the tensors of the last forward that was looked at; evaluated when asked for
        self._not_finite: NotFinite | None = None  # found in earlier forwards
        self._since = False  # whether the last of those had a NaN or infinity, too

    @classmethod
    def asked(
        cls, handle: Compression, closure: Callable[[], Any] | None, every: int, bound: float | None, raise_bits: bool
    ) -> Self:
        """The monitor that a user asks of a handle. See ``Compression.monitor``."""
        if closure is not None and not callable(closure):
            raise TypeError(f"closure must be callable or None, got {closure!r}")
        settings = Settings(every, bound, raise_bits)
        level, name = handle.level, handle.level.title(handle.level_name)
        in_layers = rounds_in_layers(handle.model)
        if handle.rounds_by_plan:
            if closure is None and bound is not None:
                raise ValueError(
                    "closure must be given for a plan, because a plan does not predict the error of later steps; or "
                    "pass bound=None"
                )
            if raise_bits:
                raise ValueError(
                    "raise_bits must be False for a plan, which chooses the bits of each tensor; pass a lower "
                    "error= to compress_model instead"
                )
        elif in_layers and level.bits is None:
            if closure is None and bound is not None:
                raise ValueError(
                    f"closure must be given at {name}, where converted layers alone round, because nothing predicts "
                    "their error; or pass bound=None"
                )
            if raise_bits:
                raise ValueError(
                    f"raise_bits must be False at {name}, which has no bits: converted layers alone round; pass more "
                    "bits to activations=, linear= or layers= instead"
                )
        elif handle._plan_manager is not None and level.off:
            raise ValueError(
                f"a monitored plan must round, got {handle._plan_manager.title()}, whose gradients are exact; pass "
                "error=0.1 to compress_model to allow rounding"
            )
        elif level.bits is None:
            raise ValueError(f"a monitored level must quantize, got {name}, whose gradients are exact; try level='L1'")
        elif closure is None and bound is not None and not level.adaptive:
            raise ValueError(
                f"closure must be given at {name}, because fixed bits do not predict the error; or pass bound=None"
            )
        return cls(settings, closure, handle.step)

    def _due_after(self, step: int) -> int:
        return (step // self.settings.every + 1) * self.settings.every

    def before_forward(self, handle: Compression) -> None:
        """Runs the check if it is due, and does what the user asked for.

        Raises:
            RuntimeError: as ``Compression.gradient_error``. What the closure raises comes through.
        """
        if self.settings.bound is None or handle.step < self._next:
            return
        if self.closure is None:
            found = self._predicted(handle)
            if handle.bit_plan is None and handle.obstacle:
                handle.warn_once("prediction", f"{handle.name}: {_unpredicted(handle.obstacle)}")
        elif why := _why_not_now(handle):
            handle.warn_once("monitor", f"{handle.name}: the monitor's check is postponed to a later forward: {why}")
            return
        else:
            found = self._measured(handle, self.closure)
        self._next = self._due_after(handle.step)
        if found is not None:
            self.error, self.checked = found, handle.step
            self._judge(handle, found, self.settings.bound)

    # ---- what is not finite ----

    def look(self, step: int) -> Look | None:
        """Looks at what a forward saves, if its number is a multiple of ``every``."""
        if step % self.settings.every:
            return None
        self._not_finite, self._since = self._found()
        self._look = Look(step)
        return self._look

    def _found(self) -> tuple[NotFinite | None, bool]:
        """The first tensor that was not finite, of the forward where it began; and whether the last forward had one,
        too.

        Once a parameter is NaN, the first tensor of every forward is: only the first such forward tells where it began.
        """
        found = None if self._look is None else self._look.found()
        if found is None:
            return self._not_finite, self._since and self._look is None
        return (self._not_finite if self._since else found), True

    # ---- the gradient's error ----

    def _predicted(self, handle: Compression) -> GradientError | None:
        """What the plan predicts; ``None`` without a plan, without a new prediction since the last check, or if nothing
        is known."""
        plan = handle.bit_plan
        if plan is None or plan.step == self._judged or not plan.gradient:
            return None
        self._judged = plan.step
        return GradientError(plan.relative_error, measured=False)

    def _measured(self, handle: Compression, closure: Callable[[], Any]) -> GradientError:
        try:
            with _as_if_outside(handle):
                found = measure_error(handle, closure)
        except BaseException as error:
            error.add_note(
                "The closure of handle.monitor raised this error before a forward of the model. Gradients, buffers "
                "and random generators are as they were before. handle.monitor(every=None) ends monitoring."
            )
            raise
        return replace(found, relative=largest(found.relative))

    def _judge(self, handle: Compression, found: GradientError, bound: float) -> None:
        # A gradient that is not finite has no error; a scaler skips that step.
        above = math.isfinite(found.relative) and found.relative > bound
        if above and not self._above:
            lower = "To lower the error, use more bits or another level."
            if handle.rounds_by_plan:
                lower = "To lower the error, make a plan with a lower error=, or with error=0."
            elif self.settings.raise_bits:
                lower = "The level's bits are raised."
            handle.warn(f"{handle.name}, step {handle.step}: {found}; the bound is {bound:g}. {lower}")
        self._above = above
        if above and self.settings.raise_bits:
            self._raise_bits(handle)

    def _raise_bits(self, handle: Compression) -> None:
        bits = handle.level.bits
        if bits is None or bits >= _MOST_BITS:
            handle.warn_once(
                "most bits",
                f"{handle.name}: the error is above its bound, but the level's bits cannot be raised further",
            )
            return
        handle.level = replace(handle.level, bits=bits + 1)
        handle.warn_once(f"{bits + 1} bits", f"{handle.name}: bits raised from {bits} to {bits + 1}")
        if handle.level.adaptive:
            handle.adapt_soon()

    # ---- for people ----

    def in_words(self, level: Level, obstacle: str) -> str:
        """The monitor's lines of the report. ``obstacle`` is why there is no plan to predict from."""
        not_finite, _ = self._found()
        return self._error_in_words(level, obstacle) + ("" if not_finite is None else f"\n{not_finite}")

    def _error_in_words(self, level: Level, obstacle: str) -> str:
        bound, every = self.settings.bound, self.settings.every
        if bound is None:
            return f"Monitored every {every} steps, without a bound on the gradient's error."
        if self.error is not None:
            where = f"step {self.checked}" if self.error.measured else f"the check before step {self.checked}"
            than = "above" if self.error.relative > bound else "within"
            return f"Monitored every {every} steps; in {where}, {self.error}: {than} the bound of {bound:g}."
        if self.closure is None and not level.adaptive:
            return (
                f"Monitored every {every} steps, but nothing predicts the gradient's error at a level of fixed bits: "
                "handle.monitor(closure) measures it."
            )
        if self.closure is None and obstacle:
            return f"Monitored every {every} steps, but {_unpredicted(obstacle)}."
        return f"Monitored every {every} steps; the gradient's error is not known yet."

    # ---- state ----

    def state(self) -> dict[str, Any]:
        """The state as plain values."""
        not_finite, since = self._found()
        return {
            "settings": {**vars(self.settings)},
            "closure": self.closure is not None,
            "error": None if self.error is None else {**vars(self.error)},
            "checked": self.checked,
            "next": self._next,
            "judged": self._judged,
            "above": self._above,
            "not_finite": None if not_finite is None else not_finite.plain(),
            "since": since,
        }

    @classmethod
    def of(cls, state: Mapping[str, Any], closure: Callable[[], Any] | None) -> Monitor:
        """The monitor from what ``state`` returned, with a closure, which the state does not hold.

        Raises:
            TypeError, ValueError: the state has another form.
        """
        try:
            of_type(bool, state["closure"], "closure")
            monitor = cls(read_entry(Settings, state["settings"]), closure, 0)
            monitor.error = of_type(GradientError | None, state["error"], "error")
            monitor.checked, monitor._next = (of_type(int, state[name], name) for name in ("checked", "next"))
            monitor._judged = of_type(int | None, state["judged"], "judged")
            monitor._above, monitor._since = (of_type(bool, state[name], name) for name in ("above", "since"))
            monitor._not_finite = of_type(NotFinite | None, state["not_finite"], "not_finite")
        except (KeyError, TypeError) as error:
            raise ValueError(f"the state of a monitor must be what state_dict returned: {error}") from error
        return monitor

    def __getstate__(self) -> dict[str, Any]:
        not_finite, since = self._found()
        return {**self.__dict__, "closure": None, "_look": None, "_not_finite": not_finite, "_since": since}


def _unpredicted(obstacle: str) -> str:
    """Why a monitor without a closure cannot predict the error, in words."""
    return f"no plan predicts the gradient's error: {obstacle}; handle.monitor(closure) measures it"


def _why_not_now(handle: Compression) -> str:
    """Why a closure cannot run before this forward; empty if it can."""
    if current_graph_task_id() != -1:
        return "this forward is part of a backward"
    if top_saved_tensors_default_hooks(True) is not None:
        return (
            "saved-tensor hooks are active around this forward, such as a checkpoint's, and would also get the "
            "closure's tensors; call handle.gradient_error(closure) outside of them"
        )
    if handle.running:
        return "another forward runs in another thread"
    return "a CUDA graph is being captured" if in_cuda_graph() else ""


@contextmanager
def _as_if_outside(handle: Compression) -> Iterator[None]:
    """A block without the surroundings of the forward: autocast's cache would keep casts of weights from the closure's
    graph."""
    devices = {parameter.device.type for parameter in handle.model.parameters()} | {"cpu"}
    with ExitStack() as contexts:
        for device in devices:
            if torch.is_autocast_enabled(device):
                contexts.enter_context(torch.autocast(device, enabled=False))
        contexts.callback(torch.clear_autocast_cache)
        yield
