"""``noted``: the plan for gradients that are there already that goes with a plan, and is saved and pickled with it.

A search would find another where this one was measured, or rounds nothing because what rounds measured too much.
"""

from __future__ import annotations

from typing import Any

from integrations.planning.solution import Found, Solution

_NOTED = "noted"


def note_accumulating(plan: Found, other: Found) -> None:
    """Has another plan be ``accumulating`` of a plan's bounds from now on."""
    plan.others[_key(plan)] = other


def noted(plan: Found) -> Found | None:
    """What ``note_accumulating`` was given last; ``None`` where none was searched or measured yet."""
    return plan.others.get(_key(plan))


def only_noted(plan: Found) -> dict[Any, Found]:
    """Of a plan's ``others`` the one that is pickled with it; what else is there can be searched again."""
    other = noted(plan)
    return {} if other is None else {_key(plan): other}


def _key(plan: Solution) -> tuple[object, ...]:
    """Plans of other bounds share ``others``, and have their own."""
    return _NOTED, plan.memory, plan.time
