"""Optimal checkpointing: what backward had better recompute than keep, for any model and within a budget.

    plan = integrations.checkpoint.plan(model, (images,), budget="4GiB")
    print(plan)
    integrations.checkpoint.apply(model, plan)
    ...train as before...

It uses ``actcore``'s search and follows Feng & Huang, "Optimal gradient checkpoint search for arbitrary computation
graphs" (CVPR 2021): ``optimal_grad_checkpointing`` is the call of its README.

This room has the calls; captures are in ``integrations._step``, the search in ``_planning``, repetitions in
``_runtime``.
"""

from integrations._planning.choice import Choice
from integrations._planning.paper import PaperSegments, paper_segments
from integrations._planning.plan import Plan
from integrations._planning.planned_segments import PlannedSegment
from integrations._planning.planner import plan
from integrations._step.capturing.capture import capture
from integrations._step.graphs.graph import Graph
from integrations.checkpoint.applied import apply, plan_of, restore_model
from integrations.checkpoint.optimal import optimal_grad_checkpointing

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
