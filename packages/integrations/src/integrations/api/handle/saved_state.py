"""A handle's state: what a resumed run needs to round as this one would have. See ``Compression.state_dict``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from integrations._utils.checked_json import require_plain
from integrations.api.handle.adapt import adapts
from integrations.api.handle.monitor import Monitor
from integrations.api.handle.plan_manager import PlanManager
from integrations.api.handle.plan_state import plans_of_state, state_of_plans
from integrations.policies.levels import Level, resolve_level

if TYPE_CHECKING:
    from integrations.api.handle.compression import Compression

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
        "recomputing": None if handle._plan_manager is None else state_of_plans(handle._plan_manager),
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
        wanted = (
            "have what it has measured: state_dict returned that as 'adaptive'" if adapts(level) else "have no plan"
        )
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
    return None if content is None else plans_of_state(content, handle.model, level, handle._plan_manager)


def _get_monitor(handle: Compression, state: Mapping[str, Any] | None) -> Monitor | None:
    """The monitor of a state, or the handle's own if the state has none."""
    if state is None:
        return handle._monitor
    closure = None if handle._monitor is None else handle._monitor.closure
    monitor = Monitor.of(state, closure)
    if state["closure"] and closure is None:
        handle.warn(
            "the state is of a handle that was monitored by a closure, which no state holds: call "
            f"handle.monitor(closure, every={monitor.settings.every}) before load_state_dict to go on so"
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
