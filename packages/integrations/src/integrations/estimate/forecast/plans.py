"""``planned_for``: the plan of a model by name, for inputs without elements."""

from __future__ import annotations

from integrations.api import plan as planning
from integrations.estimate.forecast.loss import differentiable
from integrations.estimate.forecast.subject import Subject
from integrations.planner.budget import budget_in
from integrations.planner.plan import Plan

_LABELS = "labels"  # with which models of transformers return their loss


def planned_for(subject: Subject, memory: str, error: float | None, loss: bool) -> Plan:
    """The plan of a training forward within a memory, whose error is estimated by the operators.

    Args:
        subject: the model and its inputs.
        memory: as ``compress_model`` takes it; a fraction of the plain step's as text, such as ``"0.3"``.
        error: the bound on the gradient's error; ``None`` for exact gradients.
        loss: whether the loop computes a cross-entropy of what the model returns, where that has no loss.

    Raises:
        ValueError: the memory or the error is out of range, or no plan keeps to them.
    """
    starts = differentiable if loss and _LABELS not in subject.kwargs else None
    return planning.plan(
        subject.model.train(),
        subject.args,
        subject.kwargs,
        memory=budget_in(memory),
        error=error,
        loss=starts,
        measure=False,
    )
