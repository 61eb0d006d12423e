"""``accumulating_plan``: the plan for gradients that exist already, saved and pickled with the plan that it belongs to.

A new search would find another one: this one was measured, or rounds nothing because the error of rounding measured too
large.
"""

from __future__ import annotations

from typing import Any

from integrations.planner.solution import Found, Solution

_NOTED, _FRESH = "accumulating_plan", "fresh"

WITH_ROUNDING = "with rounding"
"""The key in ``Plan.others`` of a function without arguments, which makes the plan with rounding of the same captures.
It is there until the plan has been asked for bounds, and never pickled."""


def note_accumulating(plan: Found, other: Found) -> None:
    """Makes another plan the ``accumulating`` one for a plan's bounds from now on."""
    plan.others[_key(plan)] = other
    other.others[_key(other, _FRESH)] = plan


def accumulating_plan(plan: Found) -> Found | None:
    """The plan that ``note_accumulating`` was given last; ``None`` if none was searched or measured yet."""
    found: Found | None = plan.others.get(_key(plan))
    if found is not None:
        found.others.setdefault(_key(found, _FRESH), plan)  # an unpickled one has lost it
    return found


def fresh(plan: Found) -> Found:
    """Return the plan for steps that find no gradients: of an ``accumulating`` plan, the one that it belongs to, as far
    as it is known; otherwise the plan itself."""
    found: Found = plan.others.get(_key(plan, _FRESH), plan)
    return found


def only_noted(plan: Found) -> dict[Any, Found]:
    """The one plan among ``others`` that is pickled with a plan. The other ones can be searched again."""
    other = accumulating_plan(plan)
    return {} if other is None else {_key(plan): other}


def _key(plan: Solution, kind: str = _NOTED) -> tuple[object, ...]:
    """The key in ``others``, which plans of other bounds share."""
    return kind, plan.memory, plan.time
