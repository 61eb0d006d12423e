"""``find_in_flight``: how many micro-batches of a pipeline's stage are in flight at once, by the schedule that runs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

from torch import nn

_SCHEDULES = "torch.distributed.pipelining.schedules"
_STAGES = "torch.distributed.pipelining.stage"


def find_in_flight(model: nn.Module) -> int:
    """Return how many micro-batches have had their forward and not yet all of their backward, at most, if the model is
    in a stage of a pipeline whose schedule runs now; otherwise 1.

    It is 1 also if the schedule does not say its order. The schedule is looked for among the frames that call.

    Args:
        model: the model, whose forward starts.
    """
    module = sys.modules.get(_SCHEDULES)
    if module is None:
        return 1
    # Only these frames' variables are read: Python 3.11 and 3.12 keep alive what is read as long as the frame.
    callers = [
        frame.f_locals.get("self") for frame in _frames() if frame.f_globals.get("__name__") in (_SCHEDULES, _STAGES)
    ]
    kinds = module.PipelineScheduleSingle, module.PipelineScheduleMulti
    schedule: Any = next((one for one in callers if isinstance(one, kinds)), None)
    stage: Any = next((one for one in callers if _runs(one, model)), None)
    order = getattr(schedule, "pipeline_order", None)
    if stage is None or not order:
        return 1
    return max((_count(actions, stage.stage_index) for actions in order.values()), default=1)


def _frames() -> Iterator[FrameType]:
    """The frames of torch's pipelines that call. Of others, Python 3.11 and 3.12 would keep alive what is read."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") in (_SCHEDULES, _STAGES):
            yield frame
        frame = frame.f_back


def _runs(caller: Any, model: nn.Module) -> bool:
    """Whether a caller is a stage that has the model."""
    if not any(kind.__module__ == _STAGES for kind in type(caller).__mro__):
        return False
    module = getattr(caller, "submod", None)
    return isinstance(module, nn.Module) and any(one is model for one in module.modules())


def _count(actions: Iterable[Any], stage: int) -> int:
    """Return the most micro-batches of a stage that are in flight while a rank runs these actions in order. A backward
    that is split in two frees all of its memory only in its second part, which makes the gradients of the weights."""
    now, most = 0, 1
    for action in _flattened(actions):
        kind = action.computation_type.value if action.stage_index == stage else ""
        now += {"F": 1, "B": -1, "W": -1}.get(kind, 0)
        most = max(most, now)
    return most


def _flattened(actions: Iterable[Any]) -> Iterator[Any]:
    """The actions, in their order, with those that run side by side one after the other."""
    for action in actions:
        if parts := getattr(action, "sub_actions", None):
            yield from _flattened(parts)
        elif action is not None:
            yield action
