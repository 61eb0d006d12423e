"""``measured_error``: how wrong the gradient is if a forward follows a plan."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from actcore import current_rank
from integrations._adaptive.one_step import Difference, OneStep, Unmeasured
from integrations._calls.tensors import tensors_in
from integrations._common.modules import ModulePaths
from integrations._common.progress import stage
from integrations._planning.plan import Plan
from integrations._planning.plans import Followed, Plans
from integrations._runtime.following import Following
from integrations._runtime.session import Session
from integrations._runtime.specs import Specs
from integrations._step.capturing.loss import Loss
from integrations.report.words import format_bytes
from integrations.rules.levels import LEVELS
from integrations.rules.policy import FixedBits


def measured_error(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], plan: Plan, loss: Loss | None = None
) -> float:
    """The Euclidean norm of the gradient's error over that of the gradient, in one step with these inputs.

    The step is taken twice, exactly and as planned, with the same dropout. Where memory was asked for, the exact one
    follows the plan that takes the least memory and leaves gradients exact, bit for bit. Where there is no room for the
    exact gradients beside the plan's step, they wait in bfloat16, which adds about 0.002 to the error. The model, its
    buffers and gradients, and the random generators are as before afterwards.

    Args:
        model: in training mode.
        args, kwargs: of its forward, with elements.
        plan: of the model and these inputs.
        loss: a function from the model's output to what backward starts from; ``None``: the loss that it returns, or
            else normally distributed gradients of what it returns, drawn from a fixed seed.

    Raises:
        Unmeasured: there are no elements, no gradient, or no room; or the forward is not the plan's.
        Exception: what the model raises.
    """
    stage("measuring the gradient's error")
    step = OneStep(model, args, kwargs, plan.loss if loss is None else loss)
    step.require_elements()
    around = None if plan.memory is None else partial(following, plan=_exact(plan))
    if _has_room_for_all(model, plan):
        exact = step.gradients(around)
    else:
        exact = [None for _ in model.parameters()]
        step.gradients(around, partial(_take_rounded, exact))
    difference = Difference(exact)
    step.gradients(partial(following, plan=plan), difference.take)
    return difference.relative


def _has_room_for_all(model: nn.Module, plan: Plan) -> bool:
    """Whether the exact gradients fit in memory as they are while the plan is followed, and not only in bfloat16.
    Together with the plan's peak, and the gradients on top that a step leaves, they must not take more than the plain
    step.

    Raises:
        Unmeasured: they do not even fit in bfloat16.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if plan.peak + sum(parameter.numel() * parameter.element_size() for parameter in trained) <= plan.plain_peak:
        return True
    rounded = sum(parameter.numel() * _rounded(parameter.dtype).itemsize for parameter in trained)
    if plan.peak + rounded > plan.plain_peak:
        raise Unmeasured(
            f"a step aside would take more memory than the plain step: {format_bytes(rounded)} of gradients beside "
            f"the plan's {format_bytes(plan.peak)}, where the plain step has {format_bytes(plan.plain_peak)}"
        )
    return False


def _take_rounded(into: list[Tensor | None], place: int, found: Tensor) -> None:
    """Takes a gradient, or a part of one, and keeps it in bfloat16."""
    held = into[place]
    whole = found if held is None else found + held  # the sum is rounded once
    into[place] = whole.to(_rounded(found.dtype), copy=held is None)


def _rounded(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which a gradient waits."""
    return torch.bfloat16 if dtype.is_floating_point and dtype.itemsize > torch.bfloat16.itemsize else dtype


def _exact(plan: Plan) -> Plan:
    """The plan of the least peak that rounds nothing."""
    exact = plan.within(error=0.0) if plan.level is None else plan
    return exact.choosing(exact.front[0], exact.bounds)


class _Strict(Plans):
    """Plans for a forward that must be as captured."""

    def note_mismatch(self, followed: Followed, where: str, repeats: bool = False, told: bool = True) -> None:
        raise Unmeasured(f"the forward is not the one that was captured: {where}")


@contextmanager
def following(model: nn.Module, given: Any, plan: Plan) -> Iterator[None]:
    """A block in which a forward of the model follows a plan, in place of any other plan."""
    followed = Followed(plan, plan.schedule, plan.graph.inputs)
    ahead = Following(model, _Strict(plan, "replan"), followed, plan.level)
    base = LEVELS["L0"] if plan.level is None else plan.level
    way = ahead.way(base)
    policy, level = (FixedBits(base), base) if way is None else (way.policy, way.level)
    session = Session(model, ModulePaths(model), Specs(policy), level, 0, current_rank())
    with session:
        ahead.begin(session)
        complete = False
        try:
            session.owners.add_inputs(tensors_in(given))
            yield
            complete = True
        finally:
            ahead.end(session, complete)
