"""``StageResults``: what a stage found, row by row."""

from __future__ import annotations

from bench.results.entry import Entry, at, metric, nested, numbers, part, series, table
from bench.results.record import Kind

OK, MISSED, FAILED, SKIPPED, NOT_REACHED = "ok", "missed", "failed", "skipped", "not reached"
HOLDS, DOES_NOT_HOLD, NOT_SETTLED = "holds", "does not hold", "not settled"


@numbers
class Row:
    """What a part of a stage came to.

    ``MISSED``: a figure is not what it should be; ``SKIPPED``: it cannot run here; ``NOT_REACHED``: the time was over.
    """

    case: str = metric("", "what was run", default="")
    outcome: str = metric("", "ok, missed, failed, skipped or not reached", default=OK)
    reason: str = metric("", "of another outcome than ok; what else is to be said of that one", default="")
    seconds: float = metric("s", "that it took, where it was a process of its own", default=0.0)
    values: dict[str, float | str] = table("", "by the heading of their column")
    claims: list[str] = series("", "that it speaks for, of bench.gpu.claims")


@part("stage", "a stage of tools/gpu.sh")
class StageResults(Entry):
    """One stage."""

    stage: str = at("its name")
    device: str = metric("", "cuda, or cpu in a dry run", default="cuda")
    dry: bool = metric("", "whether sizes were small, to show that it works: nothing is settled then", default=False)
    rows: list[Row] = nested(Row, "of all cases, those that were not reached included", many=True)
    seconds: float = metric("s", "that it took", default=0.0)

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


KIND = Kind("gpu", (StageResults,))
