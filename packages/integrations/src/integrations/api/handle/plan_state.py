"""The state of a model's plans: what a resumed run needs to follow and correct them as this one would have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

from torch import nn

from integrations._utils.checked_json import of_type
from integrations._utils.warn import warn
from integrations.api.error_control.error_model import ErrorModel
from integrations.api.handle.plan_arguments import (
    OPTIMAL,
    is_of_this_torch,
    require_asked,
    require_loss,
    require_same_model,
    require_this_torch,
)
from integrations.api.handle.plan_manager import PlanManager
from integrations.api.handle.plans_with_stores import Fronts
from integrations.api.handle.remeasuring import Remeasuring
from integrations.capture.graphs.sharding import distributed, get_class
from integrations.planner.bounds import Bounds
from integrations.planner.budget import AUTO
from integrations.planner.gradient_states import GradientHistory
from integrations.planner.plan import Plan
from integrations.planner.plan_json import OfOldLevel
from integrations.planner.plans import Shapes
from integrations.policies.levels import Level

_ADDED = {"shapes", "codec", "measuring", "measured_in", "version", "gradients", "together", "met"}
"""Keys that later versions have added to a state."""


def state_of_plans(manager: PlanManager) -> dict[str, Any]:
    """Return the state of a model's plans as plain values."""
    asked: Any = None if isinstance(manager.asked, Plan) else manager.asked
    plan = None if manager.plans is None else manager.plans.last
    return {
        "asked": asked.content() if isinstance(asked, Bounds) else asked,
        "plan": None if plan is None else plan.to_json(),
        "shapes": manager.shapes,
        "codec": None if manager.codec is None else str(manager.codec),
        "measuring": None if manager.measuring is None else manager.measuring.state(),
        "together": manager.together,
        "met": manager.met,
        "version": manager.plans.version if isinstance(manager.plans, Fronts) else 0,
        "gradients": manager.gradients.content(),
    }


def plans_of_state(
    state: Mapping[str, Any], model: nn.Module, level: Level, before: PlanManager | None = None
) -> PlanManager:
    """Return the plans of a state. A state holds no codec, so the codec of ``before`` stays.

    Raises:
        ValueError: the state has another form, or a plan of another model.
    """
    if not isinstance(state, Mapping) or set(state) | _ADDED != {"asked", "plan"} | _ADDED:
        raise ValueError(f"the state's checkpoint must be what state_dict returned, got {state!r:.80}")
    asked: Any = state["asked"]
    try:
        plan = None if state["plan"] is None else Plan.from_json(state["plan"])
    except OfOldLevel as old:  # a new plan is made in front of the next forward
        plan = None
        asked = (old.budget or OPTIMAL) if asked is None else asked
    if plan is not None and asked is not None and not is_of_this_torch(plan):
        plan = None  # a new plan is made in front of the next forward
    if plan is not None:
        require_this_torch(plan)
        require_same_model(plan, model)
        if before is not None and isinstance(before.asked, Bounds):
            require_loss(plan, before.asked.loss)
    if isinstance(asked, Mapping):
        asked = Bounds.of(asked)
    else:
        asked = plan if asked is None else asked
        if not isinstance(asked, Bounds):
            require_asked(asked)
    shapes: Any = state.get("shapes", "replan")
    if shapes not in get_args(Shapes):
        raise ValueError(f"the state's shapes must be 'replan' or 'refuse', got {shapes!r}")
    codec = None if before is None or not level.off else before.codec
    if state.get("codec") is not None and codec is None:
        warn(
            f"the state is of a {get_class(model).__name__} that stored what its plan keeps by {state['codec']}, "
            "which no state holds: give integrations.checkpoint.apply the codec, then load the state"
        )
    found = PlanManager(model, asked, level, shapes, codec)
    found.together = of_type(bool, state.get("together", False), "together") and distributed()
    found.met = of_type(int, state.get("met", -1), "met")
    found.gradients = GradientHistory.of(state.get("gradients"))
    if plan is not None and plan.error:
        falls_back = not isinstance(asked, Bounds) or asked.falls_back
        found.measuring = Remeasuring(ErrorModel(model, plan.error), falls_back=falls_back)
        if state.get("measuring") is not None:
            found.measuring.load(state["measuring"])
    if plan is not None and (found.plans is None or found.measuring is not None):
        bounds = asked if isinstance(asked, Bounds) else None
        if bounds is not None and bounds.memory == AUTO:  # what was free when the run planned
            bounds = replace(bounds, memory=plan.memory)
        version = of_type(int, state.get("version", 0), "version")
        errors = None if found.measuring is None else found.measuring.errors
        found.plans = Fronts(plan, level, errors, shapes=shapes, asked=bounds, version=version)
    return found
