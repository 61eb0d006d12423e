"""What compression costs in time: one step, in which storing and restoring each tensor is measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from integrations.api.handle.closures import NothingCompressed, require_closure, require_compressed
from integrations.api.handle.handle_state import HandleState
from integrations.planner.sensitivity.trial_run import trial
from integrations.runtime.timed import TimedSession


def measure_times(handle: HandleState, closure: Callable[[], Any]) -> TimedSession:
    """Runs a closure twice, to warm up and to measure; the session of its last forward. See ``Compression.report``."""
    require_closure(closure)
    require_compressed(handle, "report")
    if handle.off:
        raise ValueError(f"the level must compress to take time, got {handle.level_name}; try level='L1'")
    with handle.trial_run(), trial(handle.model) as met:
        closure()
        met.draw_again()
        forwards, handle._timed = handle.step, []
        try:
            closure()
            sessions = handle._timed
        finally:
            handle._timed = None
        if handle.step == forwards or not sessions:
            raise NothingCompressed(handle.model)
    return sessions[-1]
