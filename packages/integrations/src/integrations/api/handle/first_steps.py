"""``FirstSteps``: the first forwards that follow each plan, and the peaks that their steps are measured to take."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from integrations._utils.torch_internals import queue_callback
from integrations._utils.warn import warn
from integrations.capture.wrapper_memory import bytes_of_gradient
from integrations.planner.budget import LEAST, read_fraction
from integrations.planner.plan import Plan
from integrations.report.words import format_bytes
from integrations.tracing.backward_start import at_backward
from integrations.tracing.tensors import get_gradient

_FIRST = 3
_MOST_PLANS = 16
_MUCH = 1.05
"""A step that takes this multiple of its plan's peak is warned of."""


@dataclass
class _Followed:
    """A plan that forwards have followed.

    Attributes:
        forwards: how many have.
        measured: the largest peak of a step that was measured; 0 if none was.
    """

    plan: Plan
    forwards: int = 0
    measured: int = 0


@dataclass(frozen=True)
class _Start:
    """What was allocated when a forward started.

    Attributes:
        followed: the plan that the forward follows.
        device: whose allocator is asked.
        allocated, peak: bytes.
        gradients: bytes of the gradients that were among them.
    """

    followed: _Followed
    device: torch.device
    allocated: int
    peak: int
    gradients: int


class FirstSteps:
    """Count the forwards that have followed each plan in this process, and measure the peaks of the first three.

    The CUDA allocator counts the peak, and nothing resets its counter here, since training may read and reset it
    itself. So the peak of a step is known only if the counter rises in it. That is usual for the first steps of a
    training.
    """

    def __init__(self) -> None:
        self._followed: list[_Followed] = []
        self._starts: dict[int, _Start] = {}  # by thread
        self._told = False

    def start(self, model: nn.Module, plan: Plan) -> None:
        """Note that a forward in this thread follows a plan."""
        followed = self._of(plan)
        followed.forwards += 1
        self._starts.pop(threading.get_ident(), None)
        if followed.forwards <= _FIRST:
            device = find_device(model)
            counters = read_counters(device)
            if counters is not None:
                start = _Start(followed, device, *counters, gradients=_gradient_bytes(model))
                self._starts[threading.get_ident()] = start

    def after_forward(self, model: nn.Module, result: Any, as_planned: bool) -> None:
        """Measure the step of this thread's forward, which has returned, when its backward is over.

        Args:
            model: the model.
            result: what the forward returned.
            as_planned: whether the forward was the one for which its plan was made.
        """
        start = self._starts.pop(threading.get_ident(), None)
        if start is not None and as_planned:
            finish = partial(_finish, start, weakref.ref(model))
            at_backward(result, partial(queue_callback, finish))

    def is_first(self, plan: Plan) -> bool:
        """Return whether the last forward that has followed a plan was one of the first three."""
        return self._of(plan).forwards <= _FIRST

    def measured(self, plan: Plan) -> int:
        """Return the largest measured peak of a plan's steps in bytes, which excludes gradients as the plan's own
        does; 0 if none was measured."""
        return self._of(plan).measured

    def tell_of_excess(self) -> None:
        """Warn once if a step was measured to take much more than its plan says. A backward only notes this: a warning
        there may become an error in another thread."""
        found = [one for one in self._followed if one.measured > _MUCH * one.plan.peak]
        if self._told or not found:
            return
        self._told = True
        plan, measured = found[-1].plan, found[-1].measured
        warn(
            f"a step of {plan.model} took {format_bytes(measured)} at its peak, {measured / max(plan.peak, 1):.2f} "
            f"times the {format_bytes(plan.peak)} of its plan. A plan does not count tensors of other code in the "
            "step, such as another model or the loss function, nor workspaces of unknown "
            f"size{_remedy(plan, measured)}"
        )

    def _of(self, plan: Plan) -> _Followed:
        found = next((one for one in self._followed if one.plan is plan), None)
        if found is None:
            found = _Followed(plan)
            self._followed = [*self._followed[1 - _MOST_PLANS :], found]
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {"_followed": [], "_starts": {}, "_told": False}


def read_counters(device: torch.device) -> tuple[int, int] | None:
    """Return the bytes that are allocated on a device, and the most that were since its counter was reset; ``None`` if
    the device has no counters. Neither waits for the device."""
    if device.type != "cuda":
        return None
    return torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)


def find_device(model: nn.Module) -> torch.device:
    """Return the device of a model's first parameter; the CPU if it has none."""
    return next((one.device for one in model.parameters()), torch.device("cpu"))


def _finish(start: _Start, model: weakref.ref[nn.Module]) -> None:
    """Measure a step whose backward is over."""
    of, counters = model(), read_counters(start.device)
    if of is None or counters is None or counters[1] <= start.peak:  # an earlier step has taken more
        return
    left = start.allocated - start.gradients + _gradient_bytes(of)
    start.followed.measured = max(start.followed.measured, counters[1] - left)


def _gradient_bytes(model: nn.Module) -> int:
    """Return the bytes of a model's gradients, without those that are views, as in DistributedDataParallel's buckets,
    whose memory is there before the step."""
    found: Iterable[Any] = (get_gradient(parameter) for parameter in model.parameters())
    return sum(bytes_of_gradient(one) for one in found if one is not None and one._base is None)


def _remedy(plan: Plan, measured: int) -> str:
    """Return what to pass so that the measured peak is within the budget, as the end of a sentence."""
    if plan.memory in (None, LEAST):
        return ""
    share = plan.peak / measured
    if read_fraction(plan.memory) is None:
        less = repr(format_bytes(int(share * plan.peak)))
    else:
        less = f"{share * plan.peak / max(plan.whole, 1):.2g}"
    return f"; to leave room for them, pass memory={less}"
