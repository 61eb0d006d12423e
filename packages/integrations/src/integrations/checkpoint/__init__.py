"""Optimal checkpointing: what backward had better recompute than keep, for any model and within a budget.

    plan = integrations.checkpoint.plan(model, (images,), memory="4GiB")
    print(plan)
    integrations.checkpoint.apply(model, plan)
    ...train as before...

It uses ``actcore``'s search and follows Feng & Huang, "Optimal gradient checkpoint search for arbitrary computation
graphs" (CVPR 2021): ``optimal_grad_checkpointing`` is the call of its README.

This room has the calls; captures are in ``integrations.capture``, the search in ``planner``, repetitions in
``runtime``.
"""

from integrations.capture.capture import capture
from integrations.capture.graphs.graph import Graph
from integrations.checkpoint.applied import apply, plan_of, restore_model
from integrations.checkpoint.optimal import optimal_grad_checkpointing
from integrations.planner.choice import Choice
from integrations.planner.feng_huang_objective import PaperSegments, paper_segments
from integrations.planner.plan import Plan
from integrations.planner.plan_recomputation import plan
from integrations.planner.planned_segments import PlannedSegment

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
