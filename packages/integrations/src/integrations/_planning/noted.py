"""``noted``: the plan for gradients that exist already, saved and pickled with the plan that it belongs to.

A new search would find another one: this one was measured, or rounds nothing because the error of rounding measured too
large.
"""

from __future__ import annotations

from typing import Any

from integrations._planning.solution import Found, Solution

_NOTED = "noted"

WITH_ROUNDING = "with rounding"
"""The key in ``Plan.others`` of a function without arguments, which makes the plan with rounding of the same captures.
It is there until the plan has been asked for bounds, and never pickled."""


def note_accumulating(plan: Found, other: Found) -> None:
    """Makes another plan the ``accumulating`` one for a plan's bounds from now on."""
    plan.others[_key(plan)] = other


def noted(plan: Found) -> Found | None:
    """The plan that ``note_accumulating`` was given last; ``None`` if none was searched or measured yet."""
    return plan.others.get(_key(plan))


def only_noted(plan: Found) -> dict[Any, Found]:
    """The one plan among ``others`` that is pickled with a plan. The other ones can be searched again."""
    other = noted(plan)
    return {} if other is None else {_key(plan): other}


def _key(plan: Solution) -> tuple[object, ...]:
    """The key in ``others``, which plans of other bounds share."""
    return _NOTED, plan.memory, plan.time
