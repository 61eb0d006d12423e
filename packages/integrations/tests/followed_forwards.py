"""Steps of models whose forwards follow a plan, and a log of who follows each forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from integrations.runtime import replay
from integrations.runtime.plan_executor import PlanExecutor

from .recompute_reference import LiveBytes, Ones, random_kept


class Log(list[str]):
    """By forward: who has followed it, and whether a tape has taken over.

    Attributes:
        records: by forward: what is told of the saved tensors.
    """

    def __init__(self) -> None:
        self.records: list[list[str]] = []


def log_forwards(monkeypatch: pytest.MonkeyPatch) -> Log:
    """A log of the forwards of a test."""
    found = Log()
    monkeypatch.setattr(replay, "FORCED_OFF", False)  # where the environment turns it off, all would have a tape
    begin, take_over, end = PlanExecutor._begin_by_calls, PlanExecutor._take_over, PlanExecutor.end

    def noted(self: PlanExecutor, *given: Any) -> bool:
        by_calls = begin(self, *given)
        found.append("calls" if by_calls else "tape")
        return by_calls

    def noted_over(self: PlanExecutor, *given: Any) -> Any:
        tape = take_over(self, *given)
        found[-1] = "both" if tape is not None else "neither"
        return tape

    def noted_end(self: PlanExecutor, session: Any, *given: Any, **named: Any) -> None:
        end(self, session, *given, **named)
        told = [(one.saved, one.codec, one.why, one.original_bytes, one.stored_bytes) for one in session.records]
        found.records.append(sorted(map(str, told)))

    monkeypatch.setattr(PlanExecutor, "end", noted_end)
    monkeypatch.setattr(PlanExecutor, "_begin_by_calls", noted)
    monkeypatch.setattr(PlanExecutor, "_take_over", noted_over)
    return found


def outcome(forward: Callable[..., Any], model: Any, args: Any, kwargs: Any) -> tuple[list[Tensor], int]:
    """The outputs and gradients of a step with the same random numbers each time, and the most bytes alive in it."""
    torch.manual_seed(1)
    model.zero_grad()
    for buffer in model.buffers():
        buffer.zero_()
    with LiveBytes() as live:
        outputs = [one for one in tree_leaves(forward(*args, **kwargs)) if isinstance(one, Tensor)]
        Ones.apply(*[tensor for tensor in outputs if tensor.requires_grad]).backward()
    gradients = [torch.zeros(0) if one.grad is None else one.grad.clone() for one in model.parameters()]
    return [*(one.detach().clone() for one in outputs), *gradients], live.peak


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def chosen(graph: Any, share: float) -> tuple[Any, Any]:
    """Values that are kept, and values that segments hold; the others of these are recomputed by inner segments."""
    if share < 0:
        return random_kept(graph, 0.2, 3), random_kept(graph, 0.5, 4)
    return random_kept(graph, share, 5), None
