"""The tables and the chart of ``python -m bench checkpoint``, beside what was asked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bench.errors import BenchError
from bench.models.architectures import ARCHITECTURES, Published
from bench.results.charts import BLUE, FAINT, GREEN, GREY, INK, ORANGE, VERMILION, beside, footer, lined, titled
from bench.results.record import Record
from bench.results.report import Report
from bench.results.tables import Column, bounded, header, marked, mib, milliseconds, number, table
from bench.suites.memory.checkpoint.entries import Peak, Planned, StepTimes, cut
from bench.suites.memory.checkpoint.entries import cut as cut_of
from bench.suites.memory.checkpoint.planning import small
from bench.units import MIB, size_name
from bench.ways.checkpoints import CLOSE, LEAST, LEAST_MASKS, PLAIN

AGREEMENT = 0.05  # by which part of the planned peak the measured one may differ from it

PAPER_CUTS: Mapping[str, float] = MappingProxyType(
    {
        "resnet18": 0.64,
        "resnet50": 0.76,
        "resnet101": 0.81,
        "resnet152": 0.84,
        "densenet121": 0.82,
        "inception_v3": 0.77,
    }
)
"""What the original predicts, by its own accounting of its own graph."""

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
    for model, least in PAPER_CUTS.items():
        plan = at_own_size(record, model)
        cut = None if plan is None else plan.paper_cut
        yield _at_least(f"predicted cut, the paper's accounting, {model}", least, cut)
    for what, limits in (("capture", CAPTURE), ("search", SEARCH)):
        for model, most in limits.items():
            plan = at_own_size(record, model)
            yield _seconds_target(f"{what}, {model}", most, None if plan is None else getattr(plan, f"{what}_seconds"))
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
    cut = cut_of(record, peak)
    if architecture is None or architecture.published is None or cut is None or peak.way not in (LEAST, LEAST_MASKS):
        return None
    if peak.size != architecture.size or (peak.batch, peak.size) == small(architecture):
        return None
    return cut >= architecture.published.cut


def steps_of_ours(record: Record, model: str, batch: int, size: int) -> list[Peak]:
    """Measured peaks of a model's plans within rising budgets, the least first."""
    ways = record.of(Peak, model=model, batch=batch, size=size)
    found = [peak for peak in ways if peak.way.startswith("ours, ") and peak.peak_bytes is not None]
    return sorted(found, key=lambda peak: peak.planned_bytes or 0)


def quickest(record: Record, model: str, batch: int, size: int, cut: float) -> tuple[StepTimes, float] | None:
    """The plan that takes the least time of those whose measured peak is so much below the plain one, and its cut."""
    found = []
    for peak in steps_of_ours(record, model, batch, size):
        time, reached = record.find(StepTimes, model=model, way=peak.way, batch=batch, size=size), cut_of(record, peak)
        if time is not None and not time.failure and reached is not None and reached >= cut:
            found.append((time, reached))
    return min(found, key=lambda pair: pair[0].times_plain, default=None)


def _at_least(what: str, least: float, found: float | None) -> Target:
    if found is None:
        return Target(what, f"{least:.0%}")
    # The original's numbers are rounded to percents.
    return Target(what, f"{least:.0%}", f"{found:.1%}", round(found, 2) >= least)


def _seconds_target(what: str, most: float, found: float | None) -> Target:
    if found is None:
        return Target(what, f"{most:g} s")
    return Target(what, f"{most:g} s", f"{found:.2f} s", found <= most)


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


_MOST = 3  # models whose peak is drawn against time


def draw(record: Record) -> Figure:
    """A panel for each of a few models, and one of all cuts.

    Raises:
        BenchError: nothing was measured.
    """
    close, cuts = _close(record), _cuts(record)
    if not close and not cuts:
        raise BenchError("there is nothing to draw: no peak was measured; the text above says why")
    count = len(close) + bool(cuts)
    height = max(4.6, 1.8 + 0.22 * len(cuts))
    figure, row = plt.subplots(1, count, figsize=(1.5 + 5 * count, height), squeeze=False)
    for axes, (model, batch, size) in zip(row[0], close, strict=False):
        _draw_model(axes, record, model, batch, size)
    if cuts:
        _draw_cuts(row[0, -1], record, cuts)
    for axes in row[0]:
        axes.set_axisbelow(True)
    text = (
        "Activation peaks of forward and backward, times of a step; lines: planned, by the model of operators' times."
    )
    footer(figure, text, record.machine)
    figure.tight_layout(rect=(0, 0.42 / height, 1, 1))
    return figure


def _close(record: Record) -> list[tuple[str, int, int]]:
    """Models and sizes with measured times: those that were looked at closely, or the first ones."""
    sizes = dict.fromkeys((time.model, time.batch, time.size) for time in record.of(StepTimes) if not time.failure)
    chosen = [size for size in sizes if size[0] in CLOSE]
    return chosen or list(sizes)[:_MOST]


def _cuts(record: Record) -> list[Peak]:
    """The least measured peaks, each model's at its largest size."""
    found: dict[str, Peak] = {}
    for peak in record.of(Peak):
        if peak.way == LEAST and cut_of(record, peak) is not None:
            before = found.get(peak.model)
            if before is None or peak.batch * peak.size**2 > before.batch * before.size**2:
                found[peak.model] = peak
    return list(found.values())


def _draw_model(axes: Axes, record: Record, model: str, batch: int, size: int) -> None:
    """The planned front, and every way's measured peak and time."""
    plan = record.find(Planned, model=model, batch=batch, size=size)
    if plan is not None and not plan.failure:
        parts = [100 * peak / plan.plain_bytes for peak in plan.peaks]
        axes.step(parts, [1 + one for one in plan.overheads], where="post", color=GREY, linewidth=3, label="planned")
    plain = record.find(Peak, model=model, way=PLAIN, batch=batch, size=size)
    for time in record.of(StepTimes, model=model, batch=batch, size=size):
        peak = record.find(Peak, model=model, way=time.way, batch=batch, size=size)
        if time.failure or peak is None:
            continue
        if plain is None or not plain.peak_bytes or peak.peak_bytes is None:
            continue
        _draw_way(axes, time, 100 * peak.peak_bytes / plain.peak_bytes)
    lined(axes)
    axes.set_xlim(left=0)
    axes.set_xlabel("activation peak, % of the plain step's")
    axes.set_ylabel("step time over plain's")
    titled(axes, f"{model}, {batch} at {size}")


def _draw_way(axes: Axes, time: StepTimes, part: float) -> None:
    colours = {"ours": BLUE, "plain": INK, "each block": ORANGE, "torch.compile": VERMILION}
    colour = next((colour for start, colour in colours.items() if time.way.startswith(start)), GREEN)
    low, high = time.times_plain - min(time.ratios), max(time.ratios) - time.times_plain
    axes.errorbar(part, time.times_plain, [[low], [high]], fmt="o", color=colour, elinewidth=1, markeredgecolor="white")
    beside(axes, time.way, (part, time.times_plain), (5, 4), fontsize=7, color=colour)


def _draw_cuts(axes: Axes, record: Record, peaks: list[Peak]) -> None:
    for place, peak in enumerate(peaks):
        axes.barh(place, 100 * (cut_of(record, peak) or 0), color=BLUE, height=0.62)
        architecture = ARCHITECTURES.get(peak.model)
        if architecture is not None and architecture.published is not None:
            cut = 100 * architecture.published.cut
            axes.plot([cut, cut], [place - 0.42, place + 0.42], color=VERMILION, linewidth=2)
    axes.set_yticks(range(len(peaks)), [f"{peak.model}, {peak.batch} at {peak.size}" for peak in peaks], fontsize=8)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    lined(axes, "x")
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the plain peak; line: published, of a GPU")
    titled(axes, "What the least peak saves")
    axes.xaxis.label.set_color(FAINT)


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
