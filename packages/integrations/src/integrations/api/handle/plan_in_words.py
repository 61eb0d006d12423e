"""The plan that a model follows, as its report describes it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from actcore import Codec
from integrations._utils.compiling import has_compiled_parts
from integrations._utils.running_module import all_modules
from integrations.api.handle.remeasuring import Remeasuring
from integrations.planner.budget import read_fraction
from integrations.planner.plan import Plan
from integrations.planner.plans import Plans
from integrations.report.row import Row
from integrations.report.words import format_bytes
from integrations.runtime.compiled.joint_plans import JOINT, JointPlan
from integrations.runtime.compiled.stored import ROLE

NO_PLAN = "No recomputation plan yet"


def describe_plan(plans: Plans, measuring: Remeasuring | None, codec: Codec | None) -> str:
    """Return a sentence on the plan that was followed last: its peak, what it stores, and what backward recomputes.

    Args:
        plans: the model's plans.
        measuring: measures the plans' errors; ``None`` if nothing does.
        codec: the codec for what a plan keeps and has no store for; ``None``: as the level says.
    """
    plan = plans.followed
    joint: JointPlan | None = plan.others.get(JOINT)
    if joint is not None:
        return _describe_joint(joint, plans)
    count = len(plan.segments)
    peak = f"activation peak {format_bytes(plan.peak)} of {format_bytes(plan.uncompressed_peak)}"
    peak += f" with {plan.graph.in_flight} forwards in flight" if plan.graph.in_flight > 1 else ""
    if plan.whole > plan.uncompressed_peak and read_fraction(plan.memory) is not None:
        peak += f" (memory={plan.memory!r} is of {format_bytes(plan.whole)}, the largest plain step so far)"
    again = f"{count} segment{'' if count == 1 else 's'} of the forward" if count else "nothing"
    stored = _describe_error(plan, measuring) if codec is None else f", kept tensors stored by {codec}"
    exactly = ", nothing rounded for create_graph=True" if plan.graph.double_backward else ""
    chunks = ", the loss in chunks" if plan.chunked is not None else ""
    return f"By a plan{plans.condition}: {peak}{stored}{exactly}{chunks}; backward recomputes {again}"


def describe_exceptions(plans: Plans, unplanned: int, model: nn.Module, rows: Sequence[Row]) -> str:
    """Return sentences on how forwards have differed from what their plan, or compiled parts, let a user expect; empty
    if they have not.

    Args:
        plans: the model's plans.
        unplanned: the most forwards that were in flight at once, if their plan counts fewer; otherwise 0.
        model: the model.
        rows: the report's.
    """
    found = []
    if unplanned:
        found.append(
            f"Up to {unplanned} forwards were in flight at once, and their plan counts "
            f"{plans.followed.graph.in_flight}: the step peak may be larger. Pass in_flight={unplanned}."
        )
    in_regions = JOINT in plans.followed.others or any(row.role == ROLE for row in rows)
    if rows and not in_regions and has_compiled_parts(all_modules(model)[1:]):
        found.append(
            "Parts of the model that torch.compile was to compile ran in eager mode. With a plan they are compiled if "
            "inductor (torch 2.11 or later) compiles most layers, and neither level= nor codec= is passed."
        )
    return " ".join(found)


def _describe_joint(joint: JointPlan, plans: Plans) -> str:
    """Return the sentence for a compiled graph, which is planned by itself."""
    count = joint.recomputed
    again = f"{count} value{'' if count == 1 else 's'} of the compiled forward" if count else "nothing"
    peak = (
        f"activation peak {format_bytes(joint.peak)} of {format_bytes(plans.followed.uncompressed_peak)} in eager code"
    )
    error = plans.followed.error
    stored = ""
    if joint.rounded:
        count = joint.rounded
        stored = (
            f", {count} value{'' if count == 1 else 's'} in fewer bits, "
            f"gradient's error {joint.error:.2g} by estimate (at most {error:g})"
        )
    elif error:
        stored = f", nothing rounded (error={error:g} would allow it)"
    return f"By a plan for the compiled graph{plans.condition}: {peak}{stored}; backward recomputes {again}"


def _describe_error(plan: Plan, measuring: Remeasuring | None) -> str:
    """Return a plan's error beside its bound; empty for one that must not round."""
    if plan.compressed or not plan.error:
        return ""
    if not plan.choice.rounds:
        return f", nothing rounded (error={plan.error:g} would allow it)"
    if measuring is not None and (measuring.last is not None or plan.measured is None):
        return f", gradient's error {measuring}"
    if plan.measured is None:
        return f", gradient's error at most {plan.error:g}, not measured yet"
    return f", gradient's error {plan.measured:.2g} (at most {plan.error:g}), as measured"
