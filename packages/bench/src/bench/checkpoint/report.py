"""Results of ``python -m bench checkpoint`` as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.checkpoint.architectures import ARCHITECTURES
from bench.checkpoint.contenders import PLAIN
from bench.checkpoint.notes import notes
from bench.checkpoint.results import CheckpointResults, Peak, Planned, StepTimes
from bench.checkpoint.targets import CAPTURE, SEARCH, published_cut, targets, within
from bench.layout import columns, header
from bench.marks import marked
from bench.units import MIB

_INDENT = "  "
_Row = TypeVar("_Row", Peak, StepTimes)

PARTS = (0.75, 0.5, 0.35)  # of the plain peak, at which modelled times are shown


def render(results: CheckpointResults) -> RenderableType:
    """Header, tables and notes."""
    order = ", channels last" if results.channels_last else ""
    top = header(f"Optimal checkpointing{order}", results.machine, results.seconds)
    return Group(top, *_tables(results), notes(results))


def _tables(results: CheckpointResults) -> Iterator[Table]:
    if any(not plan.failure for plan in results.plans):
        yield _plans(results)
    alone = [peak for peak in results.peaks if _time_of(results, peak) is None]
    if any(peak.peak_bytes is not None for peak in alone):
        yield _peaks(results, alone)
    if any(not time.failure for time in results.times):
        yield _steps(results)
    yield _targets(results)


def _plans(results: CheckpointResults) -> Table:
    table = columns(
        "planned",
        "plain\nMiB",
        "least\nMiB",
        "cut\n%",
        "added time\nat least",
        *(f"\nat {part:.0%}" for part in PARTS),
        "segments",
        "capture\ns",
        "search\ns",
        "paper's\ncut, %",
    )
    for plan in results.plans:
        if plan.failure:
            continue
        own = _is_own(plan)
        table.add_row(
            _where(plan),
            f"{plan.plain_bytes / MIB:,.1f}",
            f"{plan.peaks[0] / MIB:,.1f}",
            f"{100 * plan.cut:.1f}",
            _percent(plan.overheads[0]),
            *(_percent(plan.overhead(part)) for part in PARTS),
            str(plan.segments),
            _seconds(plan.capture_seconds, CAPTURE.get(plan.model) if own else None),
            _seconds(plan.search_seconds, SEARCH.get(plan.model) if own else None),
            "" if plan.paper_cut is None else f"{100 * plan.paper_cut:.1f}",
        )
    return table


def _peaks(results: CheckpointResults, peaks: list[Peak]) -> Table:
    table = columns("measured peak", "planned\nMiB", "measured\nMiB", "measured /\nplanned", "cut\n%", "published\n%")
    above = ""
    for peak in _ordered(peaks):
        if peak.peak_bytes is None:
            continue
        above = _heading(table, peak, above)
        architecture = ARCHITECTURES.get(peak.model)
        published = None if architecture is None else architecture.published
        cut = "" if published is None or peak.way == PLAIN else f"{100 * published.cut:.0f}"
        table.add_row(_INDENT + peak.way, *_memory(results, peak), cut)
    return table


def _steps(results: CheckpointResults) -> Table:
    table = columns(
        "step",
        "planned\nMiB",
        "measured\nMiB",
        "measured /\nplanned",
        "cut\n%",
        "time\nms",
        "over plain's",
        "gradients\ndiffer by",
        "buffers\nby",
    )
    above = ""
    for time in _ordered(results.times):
        if time.failure:
            continue
        above = _heading(table, time, above)
        peak = results.peak(time.model, time.way, time.batch, time.size)
        plain = time.way == PLAIN
        table.add_row(
            _INDENT + time.way,
            *([""] * 4 if peak is None else _memory(results, peak)),
            f"{1e3 * time.median_seconds:,.0f}",
            "" if plain else f"{time.ratio:.2f} [{min(time.ratios):.2f}, {max(time.ratios):.2f}]",
            "" if plain else _difference(time, time.gradients),
            "" if plain else _difference(time, time.buffers),
        )
    return table


def _ordered(entries: Sequence[_Row]) -> list[_Row]:
    """Those of a model and a size together, the plain one first."""
    places = {where: place for place, where in enumerate(dict.fromkeys(map(_where, entries)))}
    return sorted(entries, key=lambda entry: (places[_where(entry)], entry.way != PLAIN))


def _heading(table: Table, entry: Peak | StepTimes, above: str) -> str:
    """A row with the model and its inputs, where they are others than above."""
    text = _where(entry)
    if text != above:
        table.add_row(Text(text, style="bold"))
    return text


def _targets(results: CheckpointResults) -> Table:
    table = columns("number to reach", "asked for", "found", labels=3)
    for column in table.columns:
        column.no_wrap = False
    for target in targets(results):
        table.add_row(target.what, target.asked, marked(target.found or "not measured", target.reached))
    return table


def _memory(results: CheckpointResults, peak: Peak) -> list[RenderableType]:
    """Cells of a measured peak: planned, measured, their ratio, the cut."""
    cut = results.cut(peak)
    return [
        "" if peak.planned_bytes is None else f"{peak.planned_bytes / MIB:,.1f}",
        "" if peak.peak_bytes is None else f"{peak.peak_bytes / MIB:,.1f}",
        "" if peak.agreement is None else marked(f"{peak.agreement:.3f}", within(peak)),
        "" if cut is None or peak.way == PLAIN else marked(f"{100 * cut:.1f}", published_cut(results, peak)),
    ]


def _difference(time: StepTimes, largest: float | None) -> Text:
    """How far it is from plain training, marked for plans: they promise 0."""
    if largest is None:
        return Text("")
    return marked(f"{largest:.2g}", largest == 0 if time.way.startswith("ours, ") else None)


def _time_of(results: CheckpointResults, peak: Peak) -> StepTimes | None:
    return results.time(peak.model, peak.way, peak.batch, peak.size)


def _is_own(plan: Planned) -> bool:
    """Whether it is at its table's own size."""
    architecture = ARCHITECTURES.get(plan.model)
    return architecture is not None and (plan.batch, plan.size) == (architecture.batch, architecture.size)


def _where(entry: Planned | Peak | StepTimes) -> str:
    return f"{entry.model}, {entry.batch} at {entry.size}"


def _percent(part: float | None) -> str:
    return "" if part is None else f"+{100 * part:.0f} %"


def _seconds(found: float, most: float | None) -> Text:
    return marked(f"{found:.2f}", None if most is None else found <= most)
