"""The tables and the chart of ``python -m bench systems``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FormatStrFormatter, NullLocator
from rich.table import Table

from bench.errors import BenchError
from bench.results.charts import BLUE, GREY, INK, ORANGE, VERMILION, footer, lined, titled
from bench.results.record import Record
from bench.results.report import Report
from bench.results.tables import Column, dim, mib, milliseconds, number, percent, table
from bench.suites.memory.systems.entries import Cell, Compared, Figures, Planning, as_fresh
from bench.units import KIB, MIB
from bench.ways.decoders import label
from bench.ways.general import BOUNDS, BUDGETS, PLAIN, WAYS

FASTER = 0.03
"""By how much of its time another way may be faster: medians of the same step differ by as much."""

_MORE = 0.03  # of a budget, by which measured peaks may lie above planned ones

NOISE = 0.5
"""The gradient's error above which a way is no rival to others: a fifth of such a gradient's square is noise."""

CLOSE = 0.02  # of a peak: a difference that says nothing


@dataclass(frozen=True)
class Within:
    """What trains within a budget.

    Attributes:
        budget: as a fraction of plain training's activation peak.
        bound: of the gradient's error.
        plan: the cell of the plan for both; ``None`` where there is none, or its measured peak is above the budget.
        rival: the fastest of all other cells within both, other plans among them; ``None`` where there is none.
    """

    budget: float
    bound: float
    plan: Cell | None
    rival: Cell | None

    @property
    def ratio(self) -> float | None:
        """The plan's time over the rival's; ``None`` where one of them is missing."""
        if self.plan is None or self.rival is None:
            return None
        return relative_time(self.plan) / relative_time(self.rival)

    @property
    def beaten(self) -> bool:
        """Whether the rival is faster by more than medians differ, or alone."""
        if self.ratio is None:
            return self.plan is None and self.rival is not None
        return self.ratio > 1 + FASTER


def relative_time(cell: Cell) -> float:
    """A step's time over a plain one's, which a plain one's is not."""
    return 1.0 if cell.way == PLAIN else cell.ratio or 0.0


def within_budgets(record: Record, subject: str) -> Iterator[Within]:
    """Of a model, for each budget and bound that a plan was asked for, what trains within them.

    A cell is within a budget if its measured peak is, or is above by no more than measured peaks are above planned
    ones; and within a bound if its measured error is known and no larger.
    """
    plain = record.find(Cell, subject=subject, way=PLAIN)
    if plain is None or not plain.peak_bytes:
        return
    cells = record.of(Cell, subject=subject)
    for bound in BOUNDS:
        for budget in BUDGETS:
            asked = [cell for cell in cells if (WAYS[cell.way].budget, WAYS[cell.way].bound) == (budget, bound)]
            if not asked:
                continue
            most = (1 + _MORE) * budget * plain.peak_bytes
            fitting = [cell for cell in cells if _fits(cell, most, bound)]
            plan = next((cell for cell in asked if _fits(cell, most, float("inf"))), None)
            others = [cell for cell in fitting if cell is not plan]
            yield Within(budget, bound, plan, min(others, key=relative_time, default=None))


def _fits(cell: Cell, most: float, bound: float) -> bool:
    if not cell.peak_bytes or not cell.ratio or cell.error is None:
        return False
    return cell.peak_bytes <= most and cell.error <= bound


def front(record: Record, subject: str) -> list[Cell]:
    """The cells of a model that no other beats in both memory and time, by falling peak.

    Peaks are the same that differ by ``CLOSE``. What has plain training's is plain training: another time is noise.
    """
    plain = record.find(Cell, subject=subject, way=PLAIN)
    most = (1 - CLOSE) * plain.peak_bytes if plain is not None and plain.peak_bytes else float("inf")
    cells = [
        cell
        for cell in record.of(Cell)
        if cell.subject == subject and cell.peak_bytes and cell.ratio and trains(cell)
        if cell.way == PLAIN or cell.peak_bytes < most
    ]
    best: list[Cell] = []
    for cell in sorted(cells, key=lambda one: (relative_time(one), one.peak_bytes or 0)):
        if not best or (cell.peak_bytes or 0) < (1 - CLOSE) * (best[-1].peak_bytes or 0):
            best.append(cell)
    return best


def trains(cell: Cell) -> bool:
    """Whether a way's gradient is known to be hardly noise."""
    return cell.error is not None and cell.error <= NOISE


_COLUMNS = 2
_NUMBERS = {way: number for number, way in enumerate(WAYS)}
"""Of the ways, by which points are told apart: names would lie on one another."""


def draw(record: Record) -> Figure:
    """A panel for each model and state of its gradients.

    Raises:
        BenchError: nothing was timed.
    """
    fresh = as_fresh(record)
    states = {"": record} if not fresh.entries else {", gradients are there": record, ", fresh": fresh}
    panels = [
        (state, subject, words)
        for subject in record.values(Cell, "subject")
        for words, state in states.items()
        if front(state, subject)
    ]
    if not panels:
        raise BenchError("there is nothing to draw: no cell has both a peak and times; the text above says why")
    return _draw(record, panels)


def _draw(record: Record, panels: Sequence[tuple[Record, str, str]]) -> Figure:
    """A panel for each model of record with one state of the gradients, which words name."""
    rows = -(-len(panels) // _COLUMNS)
    height = 1.25 + 3.9 * rows
    figure, grid = plt.subplots(rows, _COLUMNS, figsize=(11, height), squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.axis("off")
    for axes, (state, subject, words) in zip(grid.flat, panels, strict=False):
        _draw_subject(axes, state, subject, words)
    named = [way for way in _NUMBERS if any(cell.way == way and cell.ratio for cell in record.of(Cell))]
    named = [way for way in named if WAYS[way].budget is None]
    half = -(-len(named) // 2)
    legend = "\n".join(
        "   ".join(f"{_NUMBERS[way]} {way}" for way in some) for some in (named[:half], named[half:]) if some
    )
    text = (
        "Activation peak and time of a step, over a plain one's; blue: ours, red: others, hollow: the gradient's error "
        f"is above {NOISE:g}, or not known.\nLines: grey the front of all, red of others, blue plans by their budgets, "
        "orange those that may round."
    )
    figure.text(0.01, 0.8 / height, legend, color=INK, fontsize=8.5, va="bottom")
    footer(figure, text, record.machine)
    figure.tight_layout(rect=(0, 1.1 / height, 1, 1))
    return figure


def _draw_subject(axes: Axes, record: Record, subject: str, words: str) -> None:
    plain = record.find(Cell, subject=subject, way=PLAIN)
    cells = [cell for cell in record.of(Cell) if cell.subject == subject and cell.peak_bytes and cell.ratio]
    if plain is None or not plain.peak_bytes:
        return

    def place(peak: int | None) -> float:
        assert plain is not None
        return 100 * (peak or 0) / (plain.peak_bytes or 1)

    best = sorted(front(record, subject), key=lambda cell: cell.peak_bytes or 0)
    theirs = replace(record, entries=[cell for cell in cells if not WAYS[cell.way].ours])
    fronts = ((best, GREY, 3), (sorted(front(theirs, subject), key=lambda cell: cell.peak_bytes or 0), VERMILION, 1))
    for found, colour, width in fronts:
        ends = [place(cell.peak_bytes) for cell in found], [relative_time(cell) for cell in found]
        axes.step(*ends, where="post", color=colour, linewidth=width, zorder=1)
    for bound, colour in zip(BOUNDS, (BLUE, ORANGE), strict=False):
        plans = [cell for cell in cells if WAYS[cell.way].budget is not None and WAYS[cell.way].bound == bound]
        plans.sort(key=lambda cell: cell.peak_bytes or 0)
        ends = [place(cell.peak_bytes) for cell in plans], [relative_time(cell) for cell in plans]
        axes.plot(*ends, "-s", color=colour, markersize=6, markeredgecolor="white", zorder=5)
    for cell in cells:
        if WAYS[cell.way].budget is not None:
            continue
        colour = INK if cell.way == PLAIN else BLUE if WAYS[cell.way].ours else VERMILION
        filled = trains(cell)
        at = place(cell.peak_bytes), relative_time(cell)
        inside = colour if filled else "white"
        above = 4 if cell in best else 3
        edge = "white" if filled else colour
        axes.plot(*at, "o", markersize=11, color=inside, markeredgecolor=edge, alpha=0.85, zorder=above)
        number = str(_NUMBERS[cell.way])
        colour = "white" if filled else colour
        axes.annotate(number, at, fontsize=6.5, color=colour, ha="center", va="center", zorder=above)
    lined(axes)
    axes.set_xlim(0, 1.08 * max(place(cell.peak_bytes) for cell in cells))
    axes.set_yscale("log")
    axes.margins(y=0.1)
    low, high = axes.get_ylim()
    ticks = (0.9, 0.95, 1, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5) if high < 1.6 * low else (1, 1.25, 1.5, 2, 3, 5, 10, 15)
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.set_ylim(low, high)
    axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("activation peak, % of plain's")
    axes.set_ylabel("step time over plain's")
    titled(axes, plain.what + words, 9)


_STATES = ("adding", "fresh")


def tables(record: Record) -> Iterator[Table]:
    """One for each model, and those of budgets, plans and the device."""
    subjects = record.values(Cell, "subject")
    yield from (_table(record, subject) for subject in subjects)
    yield from budget_tables(record)
    yield from peak_table(record)
    yield from planning_tables(record)
    for subject in subjects:
        yield from tables_of_figures(record, subject)


def _table(record: Record, subject: str) -> Table:
    cells = record.of(Cell, subject=subject)
    what = next((cell.what for cell in cells if cell.what), subject)
    plain = record.find(Cell, subject=subject, way=PLAIN)
    # Of tiny models in KiB, so that percentages can be checked.
    unit, name = (MIB, "MiB") if plain is None or (plain.peak_bytes or 0) >= MIB else (KIB, "KiB")
    fresh = as_fresh(record)
    states = [record, fresh] if fresh.entries else [record]
    heads = [f"peak\n{name}", "\nof plain's, %", "step time\nover plain's"]
    if fresh.entries:  # eight columns of such names would be cut short
        heads = [f"peak\n{name}", "\n%", "\ntime", f"fresh:\n{name}", "\n%", "\ntime"]
    winners = [{cell.way for cell in front(state, subject)} for state in states]
    numbers = {cell.way: [one for state in states for one in _numbers(state, cell, unit)] for cell in cells}

    def column(place: int) -> Column[Cell]:
        return heads[place], lambda cell: numbers[cell.way][place]

    return table(
        cells,
        (what, lambda cell: label(cell.way)),
        *(column(place) for place in range(len(heads))),
        ("gradient's\nerror", lambda cell: number(cell.error, ".3f") if cell.error else number(cell.error, "g")),
        ("", lambda cell: dim(cell.outcome) if cell.outcome else _place([cell.way in found for found in winners])),
    )


def _numbers(state: Record, cell: Cell, unit: int) -> tuple[str, str, str]:
    """Peak, its part of plain's, and time, of steps with one state of the gradients."""
    plain = state.find(Cell, subject=cell.subject, way=PLAIN)
    found = state.find(Cell, subject=cell.subject, way=cell.way)
    if found is None or found.peak_bytes is None:
        return "", "", ""
    return (
        f"{found.peak_bytes / unit:,.1f}",
        percent(found.peak_bytes, plain.peak_bytes) if plain else "",
        "" if found.ratio is None else f"{relative_time(found):.2f}",
    )


def _place(wins: Sequence[bool]) -> str:
    """Whether a way is on the fronts of the states of the gradients."""
    if all(wins):
        return "on the front"
    return "front, fresh" if wins[-1] else "front, adding" if wins[0] else ""


def notes(record: Record) -> Iterator[str]:
    """What the numbers are, and who wins."""
    yield from notes_of_planning(record)
    if not record.of(Cell):
        return
    yield (
        "peak: the most during forward and backward, less what is left after it; steps add to gradients that are "
        "there, fresh ones make them. step time: forward and backward, over plain ones in turn, on a CPU without the "
        "allocator's setting by which peaks are measured. gradient's error: of "
        "the whole gradient, with the same dropout; none for Q-layers where there is dropout, which draw their own. "
        "* not ours. on the "
        f"front: none takes less of both memory and time, peaks within {CLOSE:.0%} of each other being the same; a "
        f"way whose error is unknown or above {NOISE:g} is not on it."
    )
    for subject in record.values(Cell, "subject"):
        found = [cell for cell in front(record, subject) if cell.way != PLAIN]
        if not found:
            continue
        least = found[-1]
        whose = "ours" if WAYS[least.way].ours else "not ours"
        yield f"{subject}: the least memory has {least.way} ({whose}); front: {', '.join(cell.way for cell in found)}."
    yield from notes_of_budgets(record)
    yield from notes_of_figures(record)
    yield from _reasons(record)


def _reasons(record: Record) -> Iterator[str]:
    """Why cells were not measured, once for all models of which the same is to be said."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for cell in record.of(Cell):
        why = cell.failure or cell.does_not_apply
        if cell.outcome:
            found.setdefault((label(cell.way), cell.outcome, why), []).append(cell.subject)
    for (name, outcome, reason), subjects in found.items():
        yield f"{name} ({', '.join(subjects)}) {outcome}: {reason.rstrip('.')}."


def budget_tables(record: Record) -> Iterator[Table]:
    """A table for each model that plans were timed of."""
    for subject in record.values(Cell, "subject"):
        rows = list(_within(record, subject))
        if rows:
            what = next((cell.what for cell in record.of(Cell, subject=subject) if cell.what), subject)
            yield table(
                rows,
                (f"{what}: within a budget", lambda row: f"{100 * row[1].budget:g} %, {row[0]}"),
                ("error", lambda row: f"{row[1].bound:g}"),
                ("plan's\ntime", lambda row: _time(row[1].plan)),
                ("others'", lambda row: _time(row[1].rival)),
                ("plan's over it", lambda row: number(row[1].ratio, ".2f")),
                ("whose", lambda row: "" if row[1].rival is None else label(row[1].rival.way)),
            )


def _time(cell: Cell | None) -> str:
    return "" if cell is None else f"{relative_time(cell):.2f}"


def _within(record: Record, subject: str) -> Iterator[tuple[str, Within]]:
    """By the state of the gradients, budgets that anything reaches."""
    for state, found in zip(_STATES, (record, as_fresh(record)), strict=True):
        for within in within_budgets(found, subject):
            if within.plan is not None or within.rival is not None:
                yield state, within


def notes_of_budgets(record: Record) -> Iterator[str]:
    """Where plans are beaten, and where one's error is above what was allowed."""
    some = False
    for subject in record.values(Cell, "subject"):
        for state, within in _within(record, subject):
            some = True
            if within.beaten and within.rival is not None:
                whose = f"{within.rival.way}, {relative_time(within.rival):.2f}"
                plan = "no plan" if within.plan is None else f"the plan's {relative_time(within.plan):.2f}"
                yield (f"{subject}, {100 * within.budget:g} %, error {within.bound:g}, {state}: {whose} beats {plan}.")
            plan_cell = within.plan
            if plan_cell is not None and (plan_cell.error or 0) > within.bound:
                yield f"{subject}, {state}: the error of {plan_cell.way} is {plan_cell.error:.3f}, above its bound."
    if some:
        yield (
            "within a budget: of activation peak, as a part of plain's. others': the least time of all others, other "
            "plans and plain training among them, whose measured peak and error are within both. Beaten: one is faster "
            f"by more than {FASTER:.0%}."
        )


def peak_table(record: Record) -> Iterator[Table]:
    """Measured peaks over planned ones; none where nothing was planned."""
    cells = [cell for cell in record.of(Cell) if cell.planned_bytes and cell.peak_bytes]
    fresh = as_fresh(record)
    other = {(cell.subject, cell.way): cell for cell in fresh.of(Cell)}

    def over(place: int) -> Callable[[Cell], str]:
        return lambda cell: _over(record, cell)[place]

    def fresh_over(place: int) -> Callable[[Cell], str]:
        return lambda cell: _over(fresh, other.get((cell.subject, cell.way)))[place]

    if cells:
        yield table(
            cells,
            ("Measured peaks over planned ones", lambda cell: cell.subject),
            ("way", lambda cell: cell.way),
            ("planned\nMiB", over(0)),
            ("measured\nover it", over(1)),
            ("plain's", over(2)),
            ("fresh:\nplanned", fresh_over(0)),
            ("measured\nover it", fresh_over(1)),
            ("plain's", fresh_over(2)),
            labels=2,
        )


def _over(state: Record, cell: Cell | None) -> tuple[str, str, str]:
    if cell is None or not cell.planned_bytes or not cell.peak_bytes:
        return "", "", ""
    plain = state.find(Cell, subject=cell.subject, way=PLAIN)
    plain_peak = plain.peak_bytes if plain is not None else None
    return (
        f"{cell.planned_bytes / 2**20:,.1f}",
        f"{cell.peak_bytes / cell.planned_bytes:.3f}",
        f"{plain_peak / cell.planned_plain_bytes:.3f}" if plain_peak and cell.planned_plain_bytes else "",
    )


def tables_of_figures(record: Record, subject: str) -> Iterator[Table]:
    """A table of memory and one of times for a model; none where no figures were asked for."""
    cells = [(cell, cell.figures) for cell in record.of(Cell) if cell.subject == subject and cell.figures is not None]
    if cells:
        yield _memory(cells)
        yield _times(cells)


def notes_of_figures(record: Record) -> Iterator[str]:
    """What the tables mean, and what is in no column of theirs."""
    cells = [(cell, cell.figures) for cell in record.of(Cell) if cell.figures is not None]
    if not cells:
        return
    yield (
        "memory: kept: what the forward leaves allocated on the device; planned: the activation peak by the plan that "
        "the step follows, plain's beside it; peak: the measured one, of single steps. requested, allocated, active "
        "and reserved: peaks of all that the process has, weights and gradients included, over three steps in a row: "
        "what tensors asked for, as the allocator rounds it, with what another stream still reads, and all that the "
        "allocator has taken of the device. pinned: host memory. cuBLAS: its workspaces, allocated to stay."
    )
    yield (
        "time: medians; step: on CUDA of two in a row, until the device is done. issued: until the host had issued the "
        "step, CPU: of all threads of the process meanwhile; where the device's queue is full, the host waits in both. "
        "busy: in which a kernel ran: what step has beyond it, the device has waited for the host. captured: the step "
        "as a CUDA graph replays it, in which the host does nothing. copies: between host and device; hidden: the part "
        "of them in which a kernel ran."
    )
    if record.settings["device"] != "cuda":
        yield "Launches, busy, copies, and peaks of the allocator are counted on CUDA alone; this was no GPU."
    for cell, figures in cells:
        where = f"{cell.subject}, {cell.way}"
        if figures.workspace_of:
            most = figures.workspace_bytes or 0
            yield f"{where}: the most that an operator had for itself: {mib(most)} MiB, {figures.workspace_of}."
        if cell.planned_bytes and cell.peak_bytes:
            more = cell.peak_bytes - cell.planned_bytes
            yield f"{where}: the measured peak is {mib(more)} MiB above the planned one{_plain(record, cell)}."
        if figures.not_profiled:
            yield f"{where} was not profiled: {figures.not_profiled.rstrip('.')}."
        if figures.not_captured:
            yield f"{where} was not captured: {figures.not_captured.rstrip('.')}."


def _plain(record: Record, cell: Cell) -> str:
    """How far the plain step is from what the plan has for it."""
    plain = record.find(Cell, subject=cell.subject, way=PLAIN)
    if plain is None or not plain.peak_bytes or not cell.planned_plain_bytes:
        return ""
    return f", plain's {mib(plain.peak_bytes - cell.planned_plain_bytes)} MiB"


def _memory(rows: Sequence[tuple[Cell, Figures]]) -> Table:
    return table(
        rows,
        (f"{rows[0][0].what}: memory, MiB", lambda row: label(row[0].way)),
        ("kept", lambda row: mib(row[1].kept_bytes)),
        ("planned", lambda row: mib(row[0].planned_bytes)),
        ("planned,\nplain", lambda row: mib(row[0].planned_plain_bytes)),
        ("peak", lambda row: mib(row[0].peak_bytes)),
        ("requested", lambda row: mib(row[1].requested_bytes)),
        ("allocated", lambda row: mib(row[1].allocated_bytes)),
        ("active", lambda row: mib(row[1].active_bytes)),
        ("reserved", lambda row: mib(row[1].reserved_bytes)),
        ("pinned", lambda row: mib(row[1].pinned_bytes)),
        ("cuBLAS", lambda row: mib(row[1].blas_bytes)),
    )


def _times(rows: Sequence[tuple[Cell, Figures]]) -> Table:
    return table(
        rows,
        (f"{rows[0][0].what}: time", lambda row: label(row[0].way)),
        ("step\nms", lambda row: milliseconds(row[0].seconds)),
        ("plain's\nms", lambda row: milliseconds(row[0].plain_seconds)),
        ("issued\nms", lambda row: milliseconds(row[1].host_seconds)),
        ("CPU\nms", lambda row: milliseconds(row[1].cpu_seconds)),
        ("launches", lambda row: f"{row[1].launches:,}" if row[1].launches else ""),
        ("busy\nms", lambda row: milliseconds([row[1].busy_seconds] if row[1].busy_seconds else [])),
        ("captured\nms", lambda row: milliseconds(row[1].captured_seconds)),
        ("copies\nms", lambda row: milliseconds([row[1].copy_seconds] if row[1].copy_seconds else [])),
        ("hidden\n%", lambda row: percent(row[1].hidden, 1) if row[1].hidden else number(row[1].hidden, ".0f")),
    )


def planning_tables(record: Record) -> Iterator[Table]:
    """What planning for models took, and small steps beside every choice; none where there are no such entries."""
    if plannings := record.measured(Planning):
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
    if compared := record.measured(Compared):
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


REPORT = Report("Ways to train with less memory", tables, notes, draw=draw)
