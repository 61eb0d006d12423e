"""``FirstSteps``: which forwards are among the first that follow a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from integrations._planning.plan import Plan

_FIRST = 3
_MOST_PLANS = 16


@dataclass
class _Followed:
    plan: Plan
    forwards: int = 0


class FirstSteps:
    """Count the forwards that have followed each plan in this process."""

    def __init__(self) -> None:
        self._followed: list[_Followed] = []

    def start(self, plan: Plan) -> None:
        """Note that a forward follows a plan."""
        self._of(plan).forwards += 1

    def is_first(self, plan: Plan) -> bool:
        """Return whether the last forward that has followed a plan was one of the first three."""
        return self._of(plan).forwards <= _FIRST

    def _of(self, plan: Plan) -> _Followed:
        found = next((one for one in self._followed if one.plan is plan), None)
        if found is None:
            found = _Followed(plan)
            self._followed = [*self._followed[1 - _MOST_PLANS :], found]
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {"_followed": []}
