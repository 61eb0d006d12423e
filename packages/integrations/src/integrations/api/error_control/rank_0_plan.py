"""``of_rank_0``: what rank 0 finds out while the other ranks wait, with one exchange whatever happens to rank 0.
``with_bytes``: the budget ``"auto"`` in bytes, the same on all ranks that plan together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from integrations.planner.bounds import Bounds
from integrations.planner.budget import AUTO
from integrations.planner.errors import BudgetError, PlanningError
from integrations.planner.free_memory import Free, free_for
from integrations.planner.plan import Plan
from integrations.planner.sensitivity.ranks import largest, take_from_rank_0


@dataclass(frozen=True)
class Answer:
    """What the ranks are to follow.

    Attributes:
        plan: ``None`` if none was made.
        ours: whether this rank is rank 0.
    """

    plan: Plan | None
    ours: bool = True


def of_rank_0(make: Callable[[], Answer]) -> Answer:
    """Rank 0's answer. Every rank calls this at the same time, and meets the others exactly once in it. The other ranks
    make nothing, so that none of them can fail on the way. If rank 0 fails, the others get an answer without a plan.

    Raises:
        ValueError: rank 0 raised it, because no plan keeps to the bounds.
        Exception: on rank 0 alone, what else ``make`` raises.
    """
    if torch.distributed.get_rank() != 0:
        told = take_from_rank_0(None)
        if isinstance(told, ValueError):
            raise told
        if told is None:
            return Answer(None, ours=False)
        return Answer(Plan.from_json(told), ours=False)
    told = None
    try:
        answer = make()
        told = None if answer.plan is None else answer.plan.to_json()
        return answer
    except ValueError as error:
        told = BudgetError(str(error)) if isinstance(error, PlanningError) else ValueError(str(error))
        raise
    finally:
        take_from_rank_0(told)


def with_bytes(bounds: Bounds, model: nn.Module, inputs: Any, together: bool) -> tuple[Bounds, Free | None]:
    """Return the bounds with bytes in the place of the budget ``"auto"``, and the memory that this rank has.

    Args:
        bounds: what was asked for.
        model, inputs: as for ``free_for``.
        together: whether all ranks call this at the same time. Then the bytes are the least of theirs.

    Raises:
        PlanningError: the free memory is unknown, on this rank or another one.
    """
    if bounds.memory != AUTO:
        return bounds, None
    failure: PlanningError | None = None
    try:
        found = free_for(model, inputs)
    except PlanningError as error:
        failure = error
    nbytes = -(math.nan if failure is not None else found.nbytes)
    least = -largest(nbytes) if together else -nbytes
    if failure is not None:
        raise failure
    if math.isnan(least):
        raise PlanningError(f"memory must be in bytes or a fraction if a rank's free memory is unknown, got '{AUTO}'")
    return replace(bounds, memory=f"{int(least)}B"), found
