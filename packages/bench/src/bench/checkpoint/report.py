"""What is printed of ``python -m bench checkpoint``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bench.checkpoint.architectures import ARCHITECTURES
from bench.checkpoint.chart import draw
from bench.checkpoint.contenders import PLAIN
from bench.checkpoint.notes import notes
from bench.checkpoint.results import Peak, Planned, StepTimes, cut
from bench.checkpoint.targets import CAPTURE, SEARCH, published_cut, targets, within
from bench.results.record import Record
from bench.results.report import Report
from bench.results.tables import Column, columns, header, marked, mib, milliseconds, number, table

_Row = TypeVar("_Row", Peak, StepTimes)

TITLE = "Optimal checkpointing"
PARTS = (0.75, 0.5, 0.35)  # of the plain peak, at which modelled times are shown


def head(record: Record) -> Text:
    """The header, with the order of channels."""
    order = ", channels last" if record.settings["channels_last"] else ""
    return header(f"{TITLE}{order}", record.machine, record.seconds)


def tables(record: Record) -> Iterator[Table]:
    """One for each part that was run, and of what is asked."""
    if plans := [plan for plan in record.of(Planned) if not plan.failure]:
        yield _plans(plans)
    timed = {time.place for time in record.of(StepTimes)}
    if alone := [peak for peak in record.of(Peak) if peak.place not in timed and peak.peak_bytes is not None]:
        yield _peaks(record, alone)
    if times := [time for time in record.of(StepTimes) if not time.failure]:
        yield _steps(record, times)
    yield _targets(record)


def _plans(plans: Sequence[Planned]) -> Table:
    def within_part(part: float) -> Column[Planned]:
        return f"\nat {part:.0%}", lambda plan: _percent(plan.overhead(part))

    return table(
        plans,
        ("planned", _where),
        ("plain\nMiB", lambda plan: mib(plan.plain_bytes)),
        ("least\nMiB", lambda plan: mib(plan.peaks[0])),
        ("cut\n%", lambda plan: f"{100 * plan.cut:.1f}"),
        ("added time\nat least", lambda plan: _percent(plan.overheads[0])),
        *map(within_part, PARTS),
        ("segments", lambda plan: str(plan.segments)),
        ("capture\ns", lambda plan: _seconds(plan.capture_seconds, CAPTURE.get(plan.model), plan)),
        ("search\ns", lambda plan: _seconds(plan.search_seconds, SEARCH.get(plan.model), plan)),
        ("paper's\ncut, %", lambda plan: number(plan.paper_cut and 100 * plan.paper_cut, ".1f")),
    )


def _peaks(record: Record, peaks: Sequence[Peak]) -> Table:
    return table(
        _ordered(peaks),
        ("measured peak", lambda peak: f"  {peak.way}"),
        *_memory(record),
        ("published\n%", _published),
        above=_where,
    )


def _published(peak: Peak) -> str:
    architecture = ARCHITECTURES.get(peak.model)
    published = None if architecture is None else architecture.published
    return "" if published is None or peak.way == PLAIN else f"{100 * published.cut:.0f}"


def _memory(record: Record) -> list[Column[Peak]]:
    """A measured peak: planned, measured, their ratio, the cut."""

    def agreement(peak: Peak) -> RenderableType:
        return "" if peak.agreement is None else marked(f"{peak.agreement:.3f}", within(peak))

    def saved(peak: Peak) -> RenderableType:
        found = cut(record, peak)
        return "" if found is None or peak.way == PLAIN else marked(f"{100 * found:.1f}", published_cut(record, peak))

    return [
        ("planned\nMiB", lambda peak: mib(peak.planned_bytes)),
        ("measured\nMiB", lambda peak: mib(peak.peak_bytes)),
        ("measured /\nplanned", agreement),
        ("cut\n%", saved),
    ]


def _steps(record: Record, times: Sequence[StepTimes]) -> Table:
    peaks = {peak.place: peak for peak in record.of(Peak)}

    def of_peak(column: Column[Peak]) -> Column[StepTimes]:
        heading, cell = column
        return heading, lambda time: cell(peaks[time.place]) if time.place in peaks else ""

    return table(
        _ordered(times),
        ("step", lambda time: f"  {time.way}"),
        *map(of_peak, _memory(record)),
        ("time\nms", lambda time: milliseconds(time.seconds, 0)),
        ("over plain's", _times_plain),
        ("gradients\ndiffer by", lambda time: _difference(time, time.gradients)),
        ("buffers\nby", lambda time: _difference(time, time.buffers)),
        above=_where,
    )


def _times_plain(time: StepTimes) -> str:
    if time.way == PLAIN:
        return ""
    return f"{time.times_plain:.2f} [{min(time.ratios):.2f}, {max(time.ratios):.2f}]"


def _ordered(entries: Sequence[_Row]) -> list[_Row]:
    """Those of a model and a size together, the plain one first."""
    places = {where: place for place, where in enumerate(dict.fromkeys(map(_where, entries)))}
    return sorted(entries, key=lambda entry: (places[_where(entry)], entry.way != PLAIN))


def _targets(record: Record) -> Table:
    made = columns("number to reach", "asked for", "found", labels=3)
    for column in made.columns:
        column.no_wrap = False
    for target in targets(record):
        made.add_row(target.what, target.asked, marked(target.found or "not measured", target.reached))
    return made


def _difference(time: StepTimes, largest: float | None) -> RenderableType:
    """How far it is from plain training, marked for plans: they promise 0."""
    if largest is None or time.way == PLAIN:
        return ""
    return marked(f"{largest:.2g}", largest == 0 if time.way.startswith("ours, ") else None)


def _where(entry: Planned | Peak | StepTimes) -> str:
    return f"{entry.model}, {entry.batch} at {entry.size}"


def _percent(part: float | None) -> str:
    return "" if part is None else f"+{100 * part:.0f} %"


def _seconds(found: float, most: float | None, plan: Planned) -> Text:
    """Marked at the table's own size alone."""
    architecture = ARCHITECTURES.get(plan.model)
    own = architecture is not None and (plan.batch, plan.size) == (architecture.batch, architecture.size)
    return marked(f"{found:.2f}", None if most is None or not own else found <= most)


REPORT = Report(TITLE, tables, notes, head=head, draw=draw)
