"""Tables of the part ``planning``."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from bench.results.record import Record
from bench.results.tables import number, table
from bench.systems.results import Compared, Planning


def planning_tables(record: Record) -> Iterator[Table]:
    """What planning for models took, and small steps beside every choice; none where there are no such entries."""
    if plannings := [one for one in record.of(Planning) if not one.failure]:
        yield table(
            plannings,
            ("Planning", lambda one: one.what),
            ("values", lambda one: f"{one.values:,}"),
            ("stores", lambda one: f"{one.options:,}"),
            ("plans", lambda one: f"{one.choices:,}"),
            ("capture\ns", lambda one: f"{one.capture_seconds:.2f}"),
            ("search\ns", lambda one: f"{one.search_seconds:.2f}"),
            ("peak over\nits bound", lambda one: f"{one.peak_ratio:.3f}"),
            ("time over\nits bound", lambda one: number(one.time_ratio, ".3f")),
        )
    if compared := [one for one in record.of(Compared) if not one.failure]:
        yield table(
            compared,
            ("Random steps of so many operators, beside every choice", lambda one: str(one.ops)),
            ("steps", lambda one: str(one.steps)),
            ("searched", lambda one: str(one.searched)),
            ("worst peak", lambda one: f"{one.peak_ratio:.4f}"),
            ("worst time", lambda one: f"{one.time_ratio:.4f}"),
        )


def notes_of_planning(record: Record) -> Iterator[str]:
    """What the columns mean."""
    yield from (f"{one.subject}: {one.reason}." for one in record.of(Planning) if one.reason)
    if record.of(Planning):
        yield (
            "values: of the forwards that were captured, as they are and for rounding; stores: that these may wait in; "
            "plans: that no other beats; over its bound: of the least peak, and of the modelled time of the plan "
            "within 30 % of the plain peak, over what none of its graph and peak can be below."
        )
    if record.of(Compared):
        yield (
            "searched: steps of which a tenth of the usual search has not tried every choice; worst: the peak over the "
            "least one in the same time, and the step's time over the least one in the same peak."
        )
