"""What is printed of ``python -m bench operators``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bench.operators.lines import FAILS, NOT_RUN, NOTHING, Line, by_reason, lines
from bench.operators.results import EXACT, KEPT, ROUNDED, Operated
from bench.results.record import Record
from bench.results.report import Report
from bench.results.tables import table

TITLE = "Operators: torch's own database under compression"


def parts(record: Record) -> Iterator[RenderableType]:
    """A table for each verdict, and how many there are of each."""
    found: dict[str, list[Line]] = {}
    for line in lines(record):
        found.setdefault(line.verdict, []).append(line)
    if FAILS in found:
        yield table(
            found[FAILS],
            ("fails", lambda line: line.called),
            ("what is wrong", lambda line: "; ".join(line.wrong)),
            labels=2,
        )
    yield table(
        found.get(ROUNDED, []),
        ("rounded", lambda line: line.called),
        ("saved", lambda line: line.roles(ROUNDED)),
        ("bound", lambda line: ", ".join(_bounds(line))),
        ("exactly, or kept", lambda line: line.roles(EXACT, KEPT)),
        ("of the bound", lambda line: ", ".join(f"{share:.2g}" for share in _bounds(line).values())),
        ("error", lambda line: f"{max(one.error for one in line.forms):.2g}"),
        labels=4,
    )
    yield table(
        found.get(EXACT, []),
        ("exactly in fewer bits", lambda line: line.called),
        ("saved", lambda line: line.roles(EXACT)),
        ("kept", lambda line: line.roles(KEPT)),
        labels=3,
    )
    yield _grouped("kept because", by_reason(found.get(KEPT, [])))
    nothing = {NOTHING: [line.called for line in found.get(NOTHING, [])]}
    yield _grouped("nothing to store", nothing | by_reason(found.get(NOT_RUN, [])))
    yield Text("\n".join(summary(record)), style="bold")


def _bounds(line: Line) -> dict[str, float]:
    found: dict[str, float] = {}
    for form in line.forms:
        for bound, share in form.bounds.items():
            found[bound] = max(found.get(bound, 0.0), share)
    return found


def _grouped(heading: str, names: dict[str, list[str]]) -> Table:
    rows: Sequence[tuple[str, list[str]]] = [item for item in names.items() if item[1]]
    return table(
        rows,
        (heading, lambda row: row[0]),
        ("how many", lambda row: str(len(row[1]))),
        ("operators", lambda row: ", ".join(row[1])),
        labels=3,
    )


def summary(record: Record) -> Iterator[str]:
    """How many operators there are of each verdict, and what was run."""
    counts = Counter(line.verdict for line in lines(record))
    yield "; ".join(f"{verdict}: {counts[verdict]}" for verdict in (ROUNDED, EXACT, KEPT, NOTHING, NOT_RUN, FAILS))
    entries = record.of(Operated)
    samples, planned = sum(one.samples for one in entries), sum(one.planned for one in entries)
    recomputed = sum(one.recomputed for one in entries)
    yield f"{samples:,} samples, {planned:,} with an exact plan, which recomputes in {recomputed:,}"


def notes(record: Record) -> Iterator[str]:
    """What was compared, and what was not."""
    yield (
        "Each sample: two plain steps, one at L0, two at the level with tensors of any size, and two under the plan of "
        "compress_model(error=0) with a sine behind the operator. Results are plain torch's bit for bit in all of "
        "them, gradients at L0 and under the plan; at the level they are so, too, or within a bound."
    )
    for one in record.of(Operated):
        if one.samples and one.left_out:
            reasons = "; ".join(f"{reason} ({count})" for reason, count in one.left_out.items())
            yield f"Samples left out of {one.name}, {one.form}, {one.dtype}: {reasons}."


REPORT = Report(TITLE, parts, notes, draw="operators have no chart; the tables say it all")
