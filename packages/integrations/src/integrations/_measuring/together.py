"""``of_rank_0``: what rank 0 finds out while the other ranks wait, with one exchange whatever happens to rank 0."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from integrations._adaptive.measurement import Measurement
from integrations._adaptive.ranks import first_of
from integrations._planning.plan import Plan


@dataclass(frozen=True)
class Answer:
    """What the ranks are to follow.

    Attributes:
        plan: ``None`` if none was made.
        measurement: the measurement that the plan was made by, if any.
        ours: whether this rank is rank 0.
    """

    plan: Plan | None
    measurement: Measurement | None = None
    ours: bool = True


def of_rank_0(make: Callable[[], Answer]) -> Answer:
    """Rank 0's answer. Every rank calls this at the same time, and meets the others exactly once in it. The other ranks
    make nothing, so that none of them can fail on the way. If rank 0 fails, the others get an answer without a plan.

    Raises:
        ValueError: rank 0 raised it, because no plan keeps to the bounds.
        Exception: on rank 0 alone, what else ``make`` raises.
    """
    if torch.distributed.get_rank() != 0:
        told = first_of(None)
        if isinstance(told, ValueError):
            raise told
        if told is None:
            return Answer(None, ours=False)
        plan, measurement = told
        return Answer(None if plan is None else Plan.from_json(plan), measurement, ours=False)
    told = None
    try:
        answer = make()
        told = None if answer.plan is None else answer.plan.to_json(), answer.measurement
        return answer
    except ValueError as error:
        told = ValueError(str(error))
        raise
    finally:
        first_of(told)
