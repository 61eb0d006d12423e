"""Optimal checkpointing: what backward had better recompute than keep, for any model and within a budget.

    plan = integrations.checkpoint.plan(model, (images,), budget="4GiB")
    print(plan)
    integrations.checkpoint.apply(model, plan)
    ...train as before...

It uses ``actcore``'s search and follows Feng & Huang, "Optimal gradient checkpoint search for arbitrary computation
graphs" (CVPR 2021): ``optimal_grad_checkpointing`` is the call of its README.

This room has the calls; captures are in ``integrations.step``, the search in ``planning``, repetitions in ``runtime``.
"""

from integrations.checkpoint.applied import apply, plan_of, restore_model
from integrations.checkpoint.optimal import optimal_grad_checkpointing
from integrations.planning.choice import Choice
from integrations.planning.paper import PaperSegments, paper_segments
from integrations.planning.plan import Plan
from integrations.planning.planned_segments import PlannedSegment
from integrations.planning.planner import plan
from integrations.step.capturing.capture import capture
from integrations.step.graphs.graph import Graph

__all__ = [
    "Choice",
    "Graph",
    "PaperSegments",
    "Plan",
    "PlannedSegment",
    "apply",
    "capture",
    "optimal_grad_checkpointing",
    "paper_segments",
    "plan",
    "plan_of",
    "restore_model",
]
