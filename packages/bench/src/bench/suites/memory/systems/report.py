"""The tables and the chart of ``python -m bench systems``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from rich.table import Table

from bench.results.charts import BLUE, GREY, ORANGE, VERMILION, Panel, Series
from bench.results.record import Record
from bench.results.report import Report
from bench.results.tables import Column, dim, mib, milliseconds, number, percent, table
from bench.suites.memory.systems.compiled_report import compiled_notes, compiled_tables
from bench.suites.memory.systems.entries import Cell, Compared, Figures, Planning, as_fresh
from bench.suites.memory.systems.subjects import TWINS
from bench.units import KIB, MIB
from bench.ways.decoders import label
from bench.ways.general import BOUNDS, BUDGETS, PLAIN, WAYS

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


_STATES = ("adding", "fresh")


def tables(record: Record) -> Iterator[Table]:
    """One for each model, and those of budgets, plans and the device."""
    subjects = record.values(Cell, "subject")
    yield from (_table(record, subject) for subject in subjects if subject not in TWINS)
    yield from twin_table(record)
    yield from budget_tables(record)
    yield from peak_table(record)
    yield from planning_tables(record)
    for subject in subjects:
        yield from tables_of_figures(record, subject)
    yield from compiled_tables(record)


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


def twin_table(record: Record) -> Iterator[Table]:
    """One of all models whose steps are mostly the host's time; none where none was measured."""
    cells = [cell for cell in record.of(Cell) if cell.subject in TWINS]
    if not cells:
        return

    def column(subject: str) -> Column[str]:
        found = {cell.way: cell for cell in cells if cell.subject == subject}
        what = next((cell.what for cell in found.values() if cell.what), subject)

        def time(way: str) -> str:
            cell = found.get(way)
            return "" if cell is None else cell.outcome or f"{relative_time(cell):.2f}"

        return what.replace(", ", "\n", 1), time

    ways = dict.fromkeys(cell.way for cell in cells)
    columns = (column(subject) for subject in dict.fromkeys(cell.subject for cell in cells))
    yield table(ways, ("Host time of a step over plain's", label), *columns)


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


def panels(record: Record) -> list[Panel]:
    """Memory against time, a panel for each model and state of its gradients, every way on it."""
    fresh = as_fresh(record)
    states = {"": record} if not fresh.entries else {", gradients are there": record, ", fresh": fresh}
    return [
        _points(state, subject, words)
        for subject in record.values(Cell, "subject")
        for words, state in states.items()
        if front(state, subject)
    ]


def _points(record: Record, subject: str, words: str) -> Panel:
    plain = record.find(Cell, subject=subject, way=PLAIN)
    assert plain is not None
    cells = [cell for cell in record.of(Cell, subject=subject) if cell.peak_bytes and cell.ratio]

    def series(some: Sequence[Cell], color: str, style: str, named: bool = True) -> Series:
        some = sorted(some, key=lambda cell: cell.peak_bytes or 0)
        x = [100 * (cell.peak_bytes or 0) / (plain.peak_bytes or 1) for cell in some]
        names = [cell.way for cell in some] if named else []
        return Series(x, [relative_time(cell) for cell in some], "", color, style, names)

    found = [series(front(record, subject), GREY, "-", named=False)]
    for bound, color in zip(BOUNDS, (BLUE, ORANGE), strict=True):
        plans = [cell for cell in cells if WAYS[cell.way].budget is not None and WAYS[cell.way].bound == bound]
        found.append(series(plans, color, "-s", named=False))
    others = [cell for cell in cells if WAYS[cell.way].budget is None]
    for ours, color in ((True, BLUE), (False, VERMILION)):
        some = [cell for cell in others if WAYS[cell.way].ours == ours]
        found.append(series([cell for cell in some if trains(cell)], color, "o"))
        found.append(replace(series([cell for cell in some if not trains(cell)], color, "o"), hollow=True))
    return Panel(plain.what + words, "activation peak, % of plain's", "step time over plain's", series=found)


CAPTION = (
    "Activation peak and time of a step, over a plain one's. Blue: ours; red: others; hollow: the gradient's error is "
    f"above {NOISE:g} or unknown.\nGrey: the front of all; squares: plans by their budgets, orange may round."
)


def notes(record: Record) -> Iterator[str]:
    """What of a device's figures is in no column."""
    cells = [(cell, cell.figures) for cell in record.of(Cell) if cell.figures is not None]
    if cells and record.settings["device"] != "cuda":
        yield "Launches, busy, copies, and peaks of the allocator are counted on CUDA alone; this was no GPU."
    for cell, figures in cells:
        where = f"{cell.subject}, {cell.way}"
        if figures.workspace_of:
            most = f"{mib(figures.workspace_bytes)} MiB, {figures.workspace_of}"
            yield f"{where}: the most that an operator had for itself: {most}."
        if figures.not_profiled:
            yield f"{where} was not profiled: {figures.not_profiled.rstrip('.')}."
        if figures.not_captured:
            yield f"{where} was not captured: {figures.not_captured.rstrip('.')}."
    yield from compiled_notes(record)


REPORT = Report("Ways to train with less memory", tables, notes, panels=panels, caption=lambda record: CAPTION)
