"""``Following``: a forward that follows a plan, inside of a session that stores what the plan does not make again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from integrations.checkpoint.dispatch.casts import fresh_casts
from integrations.checkpoint.dispatch.memory import Geometry
from integrations.checkpoint.dispatch.versions import unseen
from integrations.checkpoint.execution.keeping import Exactly, Packed
from integrations.checkpoint.execution.repeating import aside
from integrations.checkpoint.execution.tape import Tape
from integrations.checkpoint.graphs.graph import Graph
from integrations.checkpoint.graphs.schedule import Schedule
from integrations.checkpoint.graphs.sharding import hooks_unseen, units_of
from integrations.checkpoint.planning.plans import Followed, Plans

if TYPE_CHECKING:
    from integrations.saved.session import Session

_DECIDED = "a mask was made by it, or the like, and goes with no other: kept exactly"


class Following:
    """A forward that follows a plan, inside of a session that stores what it keeps. A context, once the session is one.

    Args:
        model: of the forward.
        plans: that the plan is one of.
        followed: by the forward.
        rounds: whether what is kept for repetitions is rounded.
    """

    def __init__(self, model: nn.Module, plans: Plans, followed: Followed, rounds: bool) -> None:
        self._model, self._plans, self._followed, self._rounds = model, plans, followed, rounds
        self._contexts = ExitStack()

    def begin(self, session: Session) -> None:
        """The session has been entered."""
        units = units_of(self._model)
        plan, schedule, _ = self._followed
        if self._rounds:
            schedule = schedule.where_rounded
        tape = Tape(schedule.within(units), _AsLevel(session, plan.graph, schedule))
        session.make_again, session.aside = tape.handle, unseen
        tracker = session.tracker
        look = tracker.look
        if look is not None:
            tracker.look = partial(_unfollowed, look)
        if not plan.compressed:  # nor made for a forward at a level, with the attention that a level has
            tracker.pack = None
        with ExitStack() as contexts:
            contexts.enter_context(fresh_casts())
            if units:
                contexts.enter_context(hooks_unseen(self._model, tape))
            contexts.enter_context(tape)
            self._contexts = contexts.pop_all()
        self._tape = tape

    def end(self, session: Session, complete: bool) -> None:
        """The session is about to be left."""
        self._contexts.close()
        session.make_again = None
        if complete:
            self._tape.finish()
            if self._tape.astray:
                self._plans.note_astray(self._followed, self._tape.astray)


def _unfollowed(look: Callable[[], None]) -> None:
    with aside():
        look()


class _AsLevel(Exactly):
    """Keeps what a repetition reads as a level keeps the inputs of a checkpoint."""

    def __init__(self, session: Session, graph: Graph, schedule: Schedule) -> None:
        self._session, self._graph, self._schedule = session, graph, schedule
        self._known: dict[tuple[int, Geometry, bool], Packed] = {}

    def read(self, tensor: Tensor, value: int) -> Packed:
        """Its stored form, which autograd may share."""
        key = value, Geometry.of(tensor), tensor.requires_grad
        found = self._known.get(key)
        if found is None:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                decided = _DECIDED if self._graph.values[value].exact else ""
                found = self._known[key] = self._session.pack_held(tensor, decided)
            while value in self._schedule.becomes:
                value = self._schedule.becomes[value]
            if self._graph.values[value].saved < 0:  # autograd alone would not keep it
                self._session.records[-1].original_bytes = 0
        return found
