"""A handle's state, with that of its plans: what a resumed run needs to round as this one would have, and to follow and
correct its plans. See ``Compression.state_dict``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from torch import nn

from integrations._utils.checked_json import of_type, require_plain
from integrations._utils.warn import warn
from integrations.api.error_control.error_model import ErrorModel
from integrations.api.handle.adapt import adapts
from integrations.api.handle.monitor import Monitor
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
from integrations.policies.levels import Level, resolve_level

if TYPE_CHECKING:
    from integrations.api.handle.compression import Compression

_ADDED = {"shapes", "codec", "measuring", "measured_in", "version", "gradients", "together", "met"}
"""Keys that later versions have added to a state."""


def _state_of_plans(manager: PlanManager) -> dict[str, Any]:
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


def _plans_of_state(
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
            f"the state is of a {get_class(model).__name__} whose plan stored kept tensors with "
            f"codec={state['codec']}, and a state does not contain the codec: pass codec= to "
            "integrations.checkpoint.apply, then load the state"
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


STATE_VERSION = 7
"""Version 1 had no plan, 2 no monitor, 3 no shapes of parameters, 4 no recomputation, 5 no bounds and no stores, 6
neither shapes nor codec."""
_KEYS = ("version", "level", "options", "step", "adaptive", "monitor", "recomputing")


def collect_state(handle: Compression) -> dict[str, Any]:
    """The handle's state: plain values only."""
    return {
        "version": STATE_VERSION,
        "level": handle.level_name,
        "options": {name: getattr(handle.level, name) for name in Level.__dataclass_fields__},
        "step": handle.step,
        "adaptive": handle._adapter.state(handle.level, handle.model),
        "monitor": None if handle._monitor is None else handle._monitor.state(),
        "recomputing": None if handle._plan_manager is None else _state_of_plans(handle._plan_manager),
    }


def take_over(handle: Compression, state: Mapping[str, Any]) -> None:
    """Gives the handle another handle's state, or raises and leaves it as it is. See
    ``Compression.load_state_dict``."""
    step = _checked_step(state)
    level = resolve_level(state["level"], state["options"])
    monitor = _get_monitor(handle, state.get("monitor"))
    manager = handle._plan_manager if state["version"] < 5 else _restored_plan_manager(handle, level, state)
    adaptive = state.get("adaptive")
    if state["version"] > 1 and (adaptive is None) == adapts(level):
        wanted = "have its measurements, which state_dict returned as 'adaptive'" if adapts(level) else "have no plan"
        raise ValueError(f"the state of {level.title(state['level'])} must {wanted}, got {adaptive!r:.80}")
    handle._adapter.load(adaptive, handle.model)
    handle._monitor = monitor
    handle._plan_manager = manager
    handle.level = level
    handle.level_name = state["level"]
    handle.step = step


def _restored_plan_manager(handle: Compression, level: Level, state: Mapping[str, Any]) -> PlanManager | None:
    """The ``PlanManager`` of a state."""
    content = state.get("recomputing")
    return None if content is None else _plans_of_state(content, handle.model, level, handle._plan_manager)


def _get_monitor(handle: Compression, state: Mapping[str, Any] | None) -> Monitor | None:
    """The monitor of a state, or the handle's own if the state has none."""
    if state is None:
        return handle._monitor
    closure = None if handle._monitor is None else handle._monitor.closure
    monitor = Monitor.of(state, closure)
    if state["closure"] and closure is None:
        handle.warn(
            "the state is of a handle that was monitored with a closure, and a state does not contain the closure: "
            f"to continue the monitoring, call handle.monitor(closure, every={monitor.settings.every}) before "
            "load_state_dict"
        )
    return monitor


def _checked_step(state: Mapping[str, Any]) -> int:
    """The step of a state, whose keys are checked."""
    if not isinstance(state, Mapping):
        raise TypeError(f"state must be what state_dict returned, got {type(state).__name__}")
    require_plain(state)
    missing = [key for key in ("version", "level", "options", "step") if key not in state]
    if missing:
        raise ValueError(f"state must have version, level, options and step; it lacks {', '.join(missing)}")
    if state["version"] not in range(1, STATE_VERSION + 1):
        raise ValueError(f"state must be of version {STATE_VERSION}, got {state['version']!r}")
    if unknown := [str(key) for key in state if key not in _KEYS]:
        raise ValueError(f"state must have what state_dict returned and no more; it adds {', '.join(unknown)}")
    if not isinstance(state["options"], Mapping):
        raise TypeError(f"the state's options must be a mapping, got {state['options']!r}")
    step = state["step"]
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 2**63:
        raise ValueError(f"the state's step must be an int, 0 or more and below 2**63, got {step!r:.40}")
    return step
