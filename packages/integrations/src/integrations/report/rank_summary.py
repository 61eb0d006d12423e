"""``RankSummary``: the sums of one rank's report; and a table of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from integrations.report.words import divide, format_bytes, format_change


@dataclass(frozen=True)
class RankSummary:
    """The sums of one rank's report. ``Report`` describes the fields that have the same name there.

    Attributes:
        rank: the global rank.
        error: why the rank has no report; empty if it has one.
    """

    rank: int
    level: str = ""
    original_bytes: int = 0
    stored_bytes: int = 0
    original_peak_bytes: int = 0
    peak_bytes: int = 0
    peak_source: str = ""
    measured_peak_bytes: int = 0
    error: str = ""

    @property
    def ratio(self) -> float:
        """``original_bytes / stored_bytes``; 1 if nothing was saved."""
        return divide(self.original_bytes, self.stored_bytes)


def ranks_table(ranks: Sequence[RankSummary]) -> Table:
    """Return a table with a row for each rank. The caption names the ranks that have no report."""
    missing = [f"Rank {one.rank} has no report: {one.error}" for one in ranks if one.error]
    table = Table(
        caption=Text("\n".join(missing)),  # rich reads brackets in a string as markup
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )
    for heading in ("rank", "before", "after", "smaller", "step peak", "measured"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in ranks:
        table.add_row(str(one.rank), *(("-",) * 5 if one.error else _cells(one)))
    return table


def _cells(one: RankSummary) -> tuple[str, ...]:
    peak = f"{format_change(one.original_peak_bytes, one.peak_bytes)}, {one.peak_source}" if one.peak_source else "-"
    measured = format_bytes(one.measured_peak_bytes) if one.measured_peak_bytes else "-"
    return format_bytes(one.original_bytes), format_bytes(one.stored_bytes), f"{one.ratio:.1f}", peak, measured
