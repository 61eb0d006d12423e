"""``StageResults``: what a stage found, row by row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.machine import Machine

OK, MISSED, FAILED, SKIPPED, NOT_REACHED = "ok", "missed", "failed", "skipped", "not reached"
HOLDS, DOES_NOT_HOLD, NOT_SETTLED = "holds", "does not hold", "not settled"


@dataclass(frozen=True)
class Row:
    """What a part of a stage came to.

    Attributes:
        case: what was run.
        outcome: ``OK``; ``MISSED``: a figure is not what it should be; ``FAILED``; ``SKIPPED``: it cannot run here;
            ``NOT_REACHED``: the time was over.
        reason: of another outcome than ``OK``; what else is to be said of this one.
        seconds: that it took, where it was a process of its own.
        values: by the heading of their column.
        claims: that it speaks for, of ``bench.gpu.claims``.
    """

    case: str
    outcome: str = OK
    reason: str = ""
    seconds: float = 0.0
    values: dict[str, float | str] = field(default_factory=dict)
    claims: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class StageResults:
    """What a stage of ``tools/gpu.sh`` found.

    Attributes:
        machine: where and with what.
        stage: its name.
        device: ``"cuda"``, or ``"cpu"`` in a dry run.
        dry: whether sizes were small, to show that it works: nothing is settled then.
        rows: of all cases, those that were not reached included.
        seconds: that it took.
    """

    machine: Machine
    stage: str
    device: str
    dry: bool
    rows: list[Row] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def measured(self) -> bool:
        """Whether this says something of a GPU."""
        return self.device == "cuda" and not self.dry

    @property
    def failed(self) -> bool:
        """Whether a part did not work, or was not reached."""
        return any(row.outcome in (FAILED, NOT_REACHED) for row in self.rows)

    def verdict(self, claim: str) -> str:
        """Whether a claim holds, by the rows that speak for it: a part that is skipped here leaves it to the others."""
        if not self.measured:
            return NOT_SETTLED
        outcomes = {row.outcome for row in self.rows if claim in row.claims}
        for outcome, verdict in ((FAILED, FAILED), (MISSED, DOES_NOT_HOLD), (NOT_REACHED, NOT_SETTLED), (OK, HOLDS)):
            if outcome in outcomes:
                return verdict
        return NOT_SETTLED

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> StageResults:
        """From what ``dataclasses.asdict`` made of one."""
        fields = dict(content)
        return cls(machine=Machine(**fields.pop("machine")), rows=[Row(**row) for row in fields.pop("rows")], **fields)
