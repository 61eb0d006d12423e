"""The tables and the chart of ``python -m bench checkpoint``, beside what was asked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

from rich.console import RenderableType
from rich.table import Table

from bench.models.architectures import ARCHITECTURES, Published
from bench.results.charts import BLUE, GREY, VERMILION, Bar, Panel, Series
from bench.results.published import published
from bench.results.record import Record
from bench.results.report import Report
from bench.results.tables import Column, bounded, marked, mib, milliseconds, number, table
from bench.suites.memory.checkpoint.entries import Peak, Planned, StepTimes, cut
from bench.suites.memory.checkpoint.planning import small
from bench.units import MIB
from bench.ways.checkpoints import CLOSE, LEAST, LEAST_MASKS, PLAIN

AGREEMENT = 0.05  # by which part of the planned peak the measured one may differ from it

CAPTURE: Mapping[str, float] = MappingProxyType({"resnet50": 5.0, "resnet152": 8.0})  # seconds, at most
SEARCH: Mapping[str, float] = MappingProxyType(
    {"resnet50": 0.2, "resnet152": 0.5, "densenet121": 1.0, "densenet201": 3.0, "nasnet": 3.0}
)

JUDGED = "resnet50"
OVERHEAD = 0.30  # of JUDGED at the published cut, at most
HALF_CUT, HALF_TIME = 0.60, 1.35  # of JUDGED at its small size


@dataclass(frozen=True)
class Target:
    """A number to reach.

    Attributes:
        what: it is.
        asked: the number.
        found: what was found; empty if it was not measured.
        reached: whether it is reached; ``None`` if it was not measured.
    """

    what: str
    asked: str
    found: str = ""
    reached: bool | None = None


def targets(record: Record) -> Iterator[Target]:
    """Everything that is asked for."""
    for model, least in published("checkpoint")["predicted_cuts"].items():
        target = Target(f"predicted cut, the paper's accounting, {model}", f"{least:.0%}")
        plan = at_own_size(record, model)
        if plan is not None and plan.paper_cut is not None:  # the original's numbers are rounded to percents
            target = replace(target, found=f"{plan.paper_cut:.1%}", reached=round(plan.paper_cut, 2) >= least)
        yield target
    for what, limits in (("capture", CAPTURE), ("search", SEARCH)):
        for model, most in limits.items():
            target, plan = Target(f"{what}, {model}", f"{most:g} s"), at_own_size(record, model)
            if plan is not None:
                seconds = getattr(plan, f"{what}_seconds")
                target = replace(target, found=f"{seconds:.2f} s", reached=seconds <= most)
            yield target
    yield _agreement(record)
    yield from _judged(record)
    yield from _published_target(record)
    yield Target("small random graphs beside every choice", "1.00 to 1.05 times", "actcore's tests: every graph")


def left(published: Published) -> float:
    """The part of the plain peak that its cut leaves: rounded down, to the percent."""
    return math.floor(100 * (1 - published.cut)) / 100


def at_own_size(record: Record, model: str) -> Planned | None:
    """What was planned for a model at its table's own size."""
    architecture = ARCHITECTURES[model]
    plan = record.find(Planned, model=model, batch=architecture.batch, size=architecture.size)
    return plan if plan is not None and not plan.failure else None


def within(peak: Peak) -> bool | None:
    """Whether the measured peak is the planned one, within ``AGREEMENT``; ``None`` where one is unknown."""
    return None if peak.agreement is None else abs(peak.agreement - 1) <= AGREEMENT


def published_cut(record: Record, peak: Peak) -> bool | None:
    """Whether the least measured peak saves what was published; ``None`` where nothing was, for that size.

    A batch that is smaller than the table's, because that one does not fit, is judged too.
    """
    architecture = ARCHITECTURES.get(peak.model)
    saved = cut(record, peak)
    if architecture is None or architecture.published is None or saved is None or peak.way not in (LEAST, LEAST_MASKS):
        return None
    if peak.size != architecture.size or (peak.batch, peak.size) == small(architecture):
        return None
    return saved >= architecture.published.cut


def steps_of_ours(record: Record, model: str, batch: int, size: int) -> list[Peak]:
    """Measured peaks of a model's plans within rising budgets, the least first."""
    ways = record.of(Peak, model=model, batch=batch, size=size)
    found = [peak for peak in ways if peak.way.startswith("ours, ") and peak.peak_bytes is not None]
    return sorted(found, key=lambda peak: peak.planned_bytes or 0)


def quickest(record: Record, model: str, batch: int, size: int, least: float) -> tuple[StepTimes, float] | None:
    """The plan that takes the least time of those whose measured peak is so much below the plain one, and its cut."""
    found = []
    for peak in steps_of_ours(record, model, batch, size):
        time, reached = record.find(StepTimes, model=model, way=peak.way, batch=batch, size=size), cut(record, peak)
        if time is not None and not time.failure and reached is not None and reached >= least:
            found.append((time, reached))
    return min(found, key=lambda pair: pair[0].times_plain, default=None)


def _agreement(record: Record) -> Target:
    what, asked = "measured peak over planned peak, every model", f"within {AGREEMENT:.0%}"
    judged = [peak for peak in record.of(Peak) if peak.agreement is not None]
    if not judged:
        return Target(what, asked)
    worst = max(judged, key=lambda peak: abs((peak.agreement or 1) - 1))
    inside = sum(within(peak) is True for peak in judged)
    found = f"{inside} of {len(judged)}; worst {worst.agreement:.3f}, {worst.model}, {worst.way}, batch {worst.batch}"
    return Target(what, asked, found, inside == len(judged))


def _judged(record: Record) -> Iterator[Target]:
    """What is asked of ``JUDGED`` at its small size."""
    architecture = ARCHITECTURES[JUDGED]
    batch, size = small(architecture)
    where = f"{JUDGED}, {batch} x 3 x {size} x {size}"
    assert architecture.published is not None
    for what, least, most in (
        ("step time at the published cut", architecture.published.cut, 1 + OVERHEAD),
        ("step time at a high cut", HALF_CUT, HALF_TIME),
    ):
        found = quickest(record, JUDGED, batch, size, least)
        what, asked = f"{what}, {where}", f"{most:.2f} times at {least:.0%}"
        if found is None:
            yield Target(what, asked)
        else:
            time, reached = found
            yield Target(
                what, asked, f"{time.times_plain:.2f} times at {reached:.1%}, {time.way}", time.times_plain <= most
            )
    yield _monotone(steps_of_ours(record, JUDGED, batch, size), where)


def _monotone(peaks: Sequence[Peak], where: str) -> Target:
    what, asked = f"measured peak in the budget, {where}", "monotone"
    if len(peaks) < 2:
        return Target(what, asked)
    shown = [f"{(peak.peak_bytes or 0) / MIB:.1f}" for peak in peaks]
    found = f"{' '.join(shown)} MiB"
    return Target(what, asked, found, shown == sorted(shown, key=float))


def _published_target(record: Record) -> Iterator[Target]:
    what, asked = "measured cut of the least peak, each model", "the published one"
    judged = [(peak.model, peak.way, published_cut(record, peak)) for peak in record.of(Peak)]
    reached = list(dict.fromkeys(model for model, _, one in judged if one))
    missed = list(dict.fromkeys(model for model, _, one in judged if one is False and model not in reached))
    with_masks = [model for model, way, one in judged if one and way == LEAST_MASKS]
    if not reached and not missed:
        yield Target(what, asked)
        return
    found = f"{len(reached)} of {len(reached) + len(missed)}" + (f"; not {', '.join(missed)}" if missed else "")
    if with_masks:
        found += f"; {', '.join(with_masks)} with ReLUs that keep one bit"
    yield Target(what, asked, found, not missed)


_Row = TypeVar("_Row", Peak, StepTimes)

_MOST = 3  # models whose peak is drawn against time
PARTS = (0.75, 0.5, 0.35)  # of the plain peak, at which modelled times are shown


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
    return "" if peak.way == PLAIN else number(_published_percent(peak), ".0f")


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


def panels(record: Record) -> list[Panel]:
    """Peak against time of models that were timed, and the cut of every model beside the published one."""
    sizes = list(dict.fromkeys((time.model, time.batch, time.size) for time in record.measured(StepTimes)))
    close = [size for size in sizes if size[0] in CLOSE] or sizes[:_MOST]
    found = [_front(record, model, batch, size) for model, batch, size in close]
    largest: dict[str, Peak] = {}
    for peak in record.of(Peak, way=LEAST):
        before = largest.get(peak.model)
        if cut(record, peak) is not None and (before is None or peak.batch * peak.size >= before.batch * before.size):
            largest[peak.model] = peak
    bars = [
        Bar(_where(peak), 100 * (cut(record, peak) or 0), mark=_published_percent(peak)) for peak in largest.values()
    ]
    return found + ([Panel("What the least peak saves", "% of the plain peak", bars=bars)] if bars else [])


def _front(record: Record, model: str, batch: int, size: int) -> Panel:
    """The planned front of a model, and every way's measured peak and time."""
    plain = record.find(Peak, model=model, way=PLAIN, batch=batch, size=size)
    plan = record.find(Planned, model=model, batch=batch, size=size)
    series = []
    if plan is not None and not plan.failure:
        parts = [100 * peak / plan.plain_bytes for peak in plan.peaks]
        series.append(Series(parts, [1 + one for one in plan.overheads], "planned", GREY, "-"))
    for time in record.of(StepTimes, model=model, batch=batch, size=size):
        peak = record.find(Peak, model=model, way=time.way, batch=batch, size=size)
        if time.failure or peak is None or not peak.peak_bytes or plain is None or not plain.peak_bytes:
            continue
        color = BLUE if time.way.startswith("ours") else VERMILION
        at, ends = 100 * peak.peak_bytes / plain.peak_bytes, (min(time.ratios), max(time.ratios))
        series.append(Series([at], [time.times_plain], "", color, names=[time.way], intervals=[ends]))
    title = f"{model}, {batch} at {size}"
    return Panel(title, "activation peak, % of the plain step's", "step time over plain's", series=series)


def _published_percent(peak: Peak) -> float | None:
    architecture = ARCHITECTURES.get(peak.model)
    known = None if architecture is None else architecture.published
    return None if known is None else 100 * known.cut


def _head(record: Record) -> dict[str, str]:
    return {"order": "channels last"} if record.settings["channels_last"] else {}


CAPTION = "Activation peaks of forward and backward, times of a step; red lines: published, of a GPU."
REPORT = Report("Optimal checkpointing", tables, head=_head, panels=panels, caption=lambda record: CAPTION)
