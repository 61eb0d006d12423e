"""``step_peaks``: the peaks of a model's last step, as the fields of a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from integrations.api.handle import first_steps
from integrations.api.handle.first_steps import find_device
from integrations.api.handle.plan_manager import PlanManager
from integrations.report.peak import estimated_peaks, gradient_bytes_by_module
from integrations.report.row import Row
from integrations.report.words import ESTIMATED, PLANNED


def step_peaks(model: nn.Module, manager: PlanManager | None, rows: Sequence[Row]) -> dict[str, Any]:
    """Return the peaks of the last step as fields of a report: those of the plan that its forward followed. If it
    followed no plan, or left it, they are estimated from the rows.

    Args:
        model: the model.
        manager: its part that has a plan; ``None`` without one.
        rows: the rows of the last forward.
    """
    plans = None if manager is None else manager.plans
    if manager is None or plans is None or plans.left:
        original, peak = estimated_peaks(rows, gradient_bytes_by_module(model))
        note = "" if plans is None else ": the forward left its plan"
        return _fields(original, peak, ESTIMATED if rows else "", note)
    manager.first_steps.tell_of_excess()
    followed = plans.followed
    if plans.inputs != followed.graph.inputs:
        measured, note = 0, f" for larger inputs ({followed.graph.inputs})"
    else:
        measured, note = manager.first_steps.measured(followed), ""
        if not measured:
            device = find_device(model)
            where = "" if first_steps.read_counters(device) is not None else f" on the {device.type.upper()}"
            note = f"; not measured{where}"
    return _fields(followed.uncompressed_peak, followed.peak, PLANNED, note, measured)


def _fields(original: int, peak: int, source: str, note: str, measured: int = 0) -> dict[str, Any]:
    return {
        "original_peak_bytes": original,
        "peak_bytes": peak,
        "peak_source": source,
        "peak_note": note,
        "measured_peak_bytes": measured,
    }
