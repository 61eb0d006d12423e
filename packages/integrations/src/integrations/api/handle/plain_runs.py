"""``PlainRuns``: forwards that run without a session, because their plan keeps every tensor as it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from integrations._utils.torch_internals import get_sequence_nr
from integrations.capture.graphs.schedule import Schedule
from integrations.runtime.plan_executor import PlanExecutor


class PlainRuns:
    """Tell which forwards need no session, since their plan and the one before leave every tensor as it is.

    Nothing watches such a forward except a count of its autograd nodes. If there are more than planned, it has taken a
    larger path, which may take more than the memory budget.
    """

    def __init__(self) -> None:
        self._schedule: Schedule | None = None  # of the forward before, if its plan left everything as it is
        self._nodes: int | None = None  # that the planned forward makes
        self._started: dict[int, PlanExecutor] = {}  # by thread

    def is_as_before(self, following: PlanExecutor | None) -> bool:
        """Return whether the plan of a forward and that of the one before are the same and leave everything as it
        is."""
        before, self._schedule = self._schedule, None if following is None else following.plain
        return self._schedule is not None and self._schedule is before

    def start(self, following: PlanExecutor) -> None:
        """Note that this thread's next forward follows a plan without a session."""
        self._started[threading.get_ident()] = following

    def note_nodes(self, nodes: int | None) -> None:
        """Note how many autograd nodes a forward with a session was planned to make."""
        self._nodes = nodes

    def run(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call a forward without a session, and notice if it takes a larger path than its plan.

        It may make fewer nodes than planned: inside of one autocast, a second forward does not cast weights again.
        """
        following = self._started.pop(threading.get_ident(), None)
        if following is None or self._nodes is None:
            return forward(*args, **kwargs)
        before, planned = get_sequence_nr(), self._nodes
        result = forward(*args, **kwargs)
        if get_sequence_nr() - before > planned:
            self._schedule = None  # the next forward has a session
            following.note_larger()
        return result
