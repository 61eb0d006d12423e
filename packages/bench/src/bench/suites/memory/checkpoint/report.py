"""What is printed of ``python -m bench checkpoint``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bench.models.architectures import ARCHITECTURES
from bench.results.record import Record
from bench.results.report import Report
from bench.results.tables import Column, bounded, header, marked, mib, milliseconds, number, table
from bench.suites.memory.checkpoint.chart import draw
from bench.suites.memory.checkpoint.results import Peak, Planned, StepTimes, cut
from bench.suites.memory.checkpoint.sizes import small
from bench.suites.memory.checkpoint.targets import AGREEMENT, CAPTURE, SEARCH, published_cut, targets, within
from bench.units import size_name
from bench.ways.checkpoints import PLAIN

_Row = TypeVar("_Row", Peak, StepTimes)

TITLE = "Optimal checkpointing"

PARTS = (0.75, 0.5, 0.35)  # of the plain peak, at which modelled times are shown


def head(record: Record) -> Text:
    """The header, with the order of channels."""
    order = ", channels last" if record.settings["channels_last"] else ""
    return header(f"{TITLE}{order}", record.machine, record.seconds)


def tables(record: Record) -> Iterator[Table]:
    """One for each part that was run, and of what is asked."""
    if plans := record.measured(Planned):
        yield _plans(plans)
    timed = {time.place for time in record.of(StepTimes)}
    if alone := [peak for peak in record.of(Peak) if peak.place not in timed and peak.peak_bytes is not None]:
        yield _peaks(record, alone)
    if times := record.measured(StepTimes):
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
    return table(
        targets(record),
        ("number to reach", lambda target: target.what),
        ("asked for", lambda target: target.asked),
        ("found", lambda target: marked(target.found or "not measured", target.reached)),
        labels=3,
        wrap=True,
    )


def _difference(time: StepTimes, largest: float | None) -> RenderableType:
    """How far it is from plain training, marked for plans: they promise 0."""
    if largest is None or time.way == PLAIN:
        return ""
    return marked(f"{largest:.2g}", largest == 0 if time.way.startswith("ours, ") else None)


def _where(entry: Planned | Peak | StepTimes) -> str:
    return f"{entry.model}, {entry.batch} at {entry.size}"


def _percent(part: float | None) -> str:
    return "" if part is None else f"+{100 * part:.0f} %"


def _seconds(found: float, most: float | None, plan: Planned) -> RenderableType:
    """Marked at the table's own size alone."""
    architecture = ARCHITECTURES.get(plan.model)
    own = architecture is not None and (plan.batch, plan.size) == (architecture.batch, architecture.size)
    return bounded(found, ".2f", most=most if own else None)


def notes(record: Record) -> Iterator[str]:
    """A paragraph a table, then what failed."""
    if plans := record.of(Planned):
        yield (
            "planned: what a plan says; no step is taken. inputs: samples, and their height and width or number of "
            "tokens. plain: the activation peak of the step that keeps everything; least: of the plan with the least. "
            "added time: of the quickest plan within that part of the plain peak, by the model of operators' times, as "
            "a part of a plain step's. capture, search: seconds on this machine, for all plans of a model together. "
            "paper's cut: what Feng and Huang's objective is, optimised, by its own accounting, in which every "
            "operator's result counts."
        )
        yield from sorted({f"{plan.model} was {plan.note}." for plan in plans if plan.note})
    if record.of(Peak):
        yield (
            "measured peak: the most memory during forward and backward, less what was there before and the gradients, "
            f"in a process of its own that may take {size_name(record.settings['memory_limit'])}. Where a step takes "
            "long, the one before it, which pays for caches, was of fewer samples. ours: plans of "
            "integrations.checkpoint, within that part of the planned plain peak. "
            "each block: torch.utils.checkpoint around each block. torch.compile: with that activation_memory_budget. "
            f"measured / planned: ✓ within {AGREEMENT:.0%}. cut: of the measured plain peak; ✓ at least what was "
            "published, by the README of OptimalGradCheckpointing, of a GPU's memory."
        )
        yield from _reduced(record)
    if times := record.of(StepTimes):
        rounds = max(len(time.seconds) for time in times)
        yield (
            "step: forward and backward at a size at which they take seconds. time: the median; over plain's: the "
            f"median over {rounds} rounds in turn of a step's time over the plain one's of the same round, and its "
            "range. differ by: the largest difference of any element of a gradient, or of a buffer, from those of a "
            "plain step with the same random numbers, as a part of the largest element of all."
        )
    yield from _failures(record)
    commits = sorted({entry.commit for entry in record.entries if entry.commit})
    if len(commits) > 1:
        yield f"Measured with commits {', '.join(commits)}; the file says which number is of which."


def _reduced(record: Record) -> Iterator[str]:
    """The models that were measured at fewer samples than their table has."""
    batches = {}
    for peak in record.of(Peak):
        architecture = ARCHITECTURES.get(peak.model)
        if architecture is None or peak.size != architecture.size or peak.peak_bytes is None:
            continue
        if peak.batch < architecture.batch and (peak.batch, peak.size) != small(architecture):
            batches[peak.model] = f"{peak.model} at {peak.batch} instead of {architecture.batch}"
    if batches:
        yield f"Not the table's own batch, which does not fit: {', '.join(batches.values())}."


def _failures(record: Record) -> Iterator[str]:
    for plan in record.of(Planned):
        if plan.failure:
            yield f"Not planned: {plan.model}, {plan.batch} at {plan.size}: {plan.failure}"
    for peak in record.of(Peak):
        if peak.failure:
            yield f"Not measured: peak of {_said(peak)}: {peak.failure}"
    for time in record.of(StepTimes):
        if time.failure:
            yield f"Not measured: time of {_said(time)}: {time.failure}"


def _said(entry: Peak | StepTimes) -> str:
    return f"{entry.model}, {entry.way}, {entry.batch} at {entry.size}"


REPORT = Report(TITLE, tables, notes, head=head, draw=draw)
