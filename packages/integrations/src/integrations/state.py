"""The form of a handle's state, checked before anything is taken over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STATE_VERSION = 3  # 1 had no plan, 2 no monitor


def checked_step(state: Mapping[str, Any]) -> int:
    """The step of a state that has the parts of one. See ``Compression.load_state_dict``."""
    if not isinstance(state, Mapping):
        raise TypeError(f"state must be what state_dict returned, got {type(state).__name__}")
    missing = [key for key in ("version", "level", "options", "step") if key not in state]
    if missing:
        raise ValueError(f"state must have version, level, options and step; it lacks {', '.join(missing)}")
    if state["version"] not in (1, 2, STATE_VERSION):
        raise ValueError(f"state must be of version {STATE_VERSION}, got {state['version']!r}")
    if not isinstance(state["options"], Mapping):
        raise TypeError(f"the state's options must be a mapping, got {state['options']!r}")
    step = state["step"]
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ValueError(f"the state's step must be an int, 0 or more, got {step!r}")
    return step
