"""``of_rank_0``: what rank 0 finds out while the other ranks wait, with one exchange whatever happens to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from integrations.adaptive.measurement import Measurement
from integrations.adaptive.ranks import first_of
from integrations.planning.plan import Plan


@dataclass(frozen=True)
class Answer:
    """What there is to follow.

    Attributes:
        plan: ``None``: none was made.
        measurement: that it was made by; ``None``: by none.
        ours: whether this rank is rank 0.
    """

    plan: Plan | None
    measurement: Measurement | None = None
    ours: bool = True


def of_rank_0(make: Callable[[], Answer]) -> Answer:
    """Rank 0's answer. Every rank calls this at the same time, and exactly once meets the others in it: no other rank
    makes anything, so that none can fail on the way. Where rank 0 fails, the others have an answer without a plan.

    Raises:
        ValueError: rank 0 raised it, as where no plan keeps to the bounds.
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
