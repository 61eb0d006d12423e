"""Forwards that keep given values, as the session runs them that every plan is followed by."""

from __future__ import annotations

from integrations._utils.locking import Users
from integrations._utils.warn import warn
from integrations.api.handle.compression import Compression
from integrations.capture.graphs.signature import Signature
from integrations.planner.choice import Choice, make_mask
from integrations.planner.plan import Plan
from integrations.planner.plans import Followed
from integrations.policies.levels import LEVELS
from integrations.runtime.plan_executor import PlanExecutor
from integrations.tracing.storage.storage_policy import through


class _Given:
    """In the place of a handle's ``recomputing``: one schedule for all forwards, whatever their inputs.

    Attributes:
        made: what the forwards follow, if somebody wants to see it; ``None``: nobody keeps it.
    """

    rounds = may_become_exact = False
    codec = None
    plans = ()  # there is one, see ``PlanManager``

    def __init__(self, plan, keeps):
        self.plan, self.keeps, self.made, self.users = plan, keeps, None, Users()
        self.left = ""

    def following(self, model, level, args, kwargs, bits=None, compiled=False, double=None, any_path=False, step=None):
        followed = Followed(self.plan, self.plan.schedule, Signature.of(args, kwargs), self.plan)
        made = PlanExecutor(model, self, followed, None, compiled, self.keeps)
        if self.made is not None:
            self.made.append(made)
        return made

    def note_mismatch(self, followed, where, repeats=False, told=True):
        warn(
            f"{self.plan.model}'s forward is not the one that was captured: {where}. What follows is kept: gradients "
            "are right and memory is not saved"
        )

    def may_take_less(self, plan):
        return False

    def note_output(self, step, args, kwargs, returned):
        pass

    def note_returned(self):
        pass

    def observe_backward(self, model, result):
        pass

    def title(self):
        return "given values"


def handle_keeping(model, graph, kept, codec=None, held=None):
    """A handle of a model whose forwards keep, of what autograd saves, only these values for backward.

    Args:
        model: the one that the graph was captured of; it stays plain.
        graph: what ``capture`` returned.
        kept: numbers of the values that are kept.
        codec: stores the activations among what is kept; ``None`` keeps them as they are.
        held: as in ``Schedule.of``.
    """
    choice = Choice(make_mask(kept), 0, 0.0, 0.0, None if held is None else make_mask(held))
    plan = Plan(type(model).__name__, graph, choice, (choice,), 0, exact=True)
    handle = Compression(model, "L0", LEVELS["L0"])
    handle._plan_manager = _Given(plan, None if codec is None else through(codec, handle.level))
    return handle


def run(model, graph, kept, codec=None, held=None):
    """The model's forward, as ``handle_keeping`` has it. A forward whose operators are not those of the graph warns."""
    handle = handle_keeping(model, graph, kept, codec, held)

    def forward(*args, **kwargs):
        return handle.run(model, args, kwargs)

    forward.handle = handle
    return forward
