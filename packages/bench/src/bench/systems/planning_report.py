"""Tables of the part ``planning``."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from bench.layout import columns
from bench.systems.results import SystemResults


def planning_tables(results: SystemResults) -> Iterator[Table]:
    """What planning for models took, and small steps beside every choice; none where there are no such results."""
    if results.plannings:
        heads = ("values", "stores", "plans", "capture\ns", "search\ns", "peak over\nits bound", "time over\nits bound")
        table = columns("Planning", *heads)
        for one in results.plannings:
            seconds = f"{one.capture_seconds:.2f}", f"{one.search_seconds:.2f}"
            time = "" if one.time_ratio is None else f"{one.time_ratio:.3f}"
            counts = (f"{count:,}" for count in (one.values, one.options, one.choices))
            table.add_row(one.what, *counts, *seconds, f"{one.peak_ratio:.3f}", time)
        yield table
    if results.compared:
        ratios_of = ("worst peak", "worst time")
        table = columns("Random steps of so many operators, beside every choice", "steps", "searched", *ratios_of)
        for row in results.compared:
            ratios = f"{row.peak_ratio:.4f}", f"{row.time_ratio:.4f}"
            table.add_row(str(row.ops), str(row.steps), str(row.searched), *ratios)
        yield table


def notes_of_planning(results: SystemResults) -> Iterator[str]:
    """What the columns mean."""
    if results.plannings:
        yield (
            "values: of the forwards that were captured, as they are and for rounding; stores: that these may wait in; "
            "plans: that no other beats; over its bound: of the least peak, and of the modelled time of the plan "
            "within 30 % of the plain peak, over what none of its graph and peak can be below."
        )
    if results.compared:
        yield (
            "searched: steps of which a tenth of the usual search has not tried every choice; worst: the peak over the "
            "least one in the same time, and the step's time over the least one in the same peak."
        )
