"""Rows and columns as tables, and how numbers are written in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median
from typing import TypeVar

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from bench.results.machine import Machine
from bench.results.statistics import UNDECIDED, Difference, Reached, spread
from bench.units import MIB

Row = TypeVar("Row")
Column = tuple[str, Callable[[Row], RenderableType]]
"""A heading, and what a row has below it."""


def table(
    rows: Iterable[Row],
    *headed: Column[Row],
    labels: int = 1,
    above: Callable[[Row], str] | None = None,
    sections: bool = False,
    instead: Callable[[Row], Sequence[RenderableType] | None] | None = None,
    title: str = "",
    wrap: bool = False,
) -> Table:
    """Make a table of rows.

    Args:
        rows: from top to bottom.
        *headed: the columns; all but the first ``labels`` hold numbers.
        labels: number of columns that hold words.
        above: returns the heading of a row, which is printed where it differs from that of the row before.
        sections: whether a line separates the rows of different headings.
        instead: returns the cells that replace all columns but the labels, such as a failure; ``None``: no cells.
        title: above the table.
        wrap: whether long cells are broken into lines.
    """
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title or None, title_justify="left", title_style="bold")
    for place, (heading, _) in enumerate(headed):
        made.add_column(heading, justify="left" if place < labels else "right", no_wrap=not wrap)
    last = ""
    for row in rows:
        if above is not None and above(row) != last:
            if last and sections:
                made.add_section()
            last = above(row)
            made.add_row(Text(last, style="bold"))
        other = None if instead is None else instead(row)
        if other is None:
            made.add_row(*(cell(row) for _, cell in headed))
        else:
            made.add_row(*(cell(row) for _, cell in headed[:labels]), *other)
    return made


def columns(*headings: str, labels: int = 1) -> Table:
    """Make an empty table; all columns but the first ``labels`` hold numbers."""
    return table((), *((heading, str) for heading in headings), labels=labels)


def number(value: float | None, form: str) -> str:
    """In a form such as ``".2f"``; nothing where there is none."""
    return "" if value is None else format(value, form)


def mib(nbytes: float | None, places: int = 1) -> str:
    """Bytes in MiB; nothing where there are none."""
    return "" if nbytes is None else f"{nbytes / MIB:,.{places}f}"


def milliseconds(seconds: Sequence[float], places: int = 1) -> str:
    """The median of times in ms; nothing where there are none."""
    return f"{1e3 * median(seconds):,.{places}f}" if seconds else ""


def percent(value: float | None, whole: float | None, places: int = 0) -> str:
    """A part of a whole in percent; nothing where one is unknown."""
    return f"{100 * value / whole:.{places}f}" if value and whole else ""


def mean(values: Sequence[float], places: int) -> str:
    """A mean and its standard deviation, if there is one; nothing where there are no values."""
    if not values:
        return ""
    deviation = spread(values)
    return f"{fmean(values):.{places}f}" + ("" if deviation is None else f" ± {deviation:.{places}f}")


def interval(found: Difference | None, places: int) -> str:
    """A mean difference and its interval, if there is one."""
    if found is None:
        return ""
    middle = f"{found.mean:+.{places}f}"
    return middle if found.low is None else f"{middle} [{found.low:+.{places}f}, {found.high:+.{places}f}]"


def dim(text: str) -> Text:
    """A remark in a cell."""
    return Text(text, style="dim")


WIDTH = 160  # what the tables take


def console() -> Console:
    """A console wide enough for the tables. A narrower terminal breaks its lines, but no number is cut short."""
    return Console(width=max(WIDTH, Console().width))


def header(title: str, machine: Machine, seconds: float) -> Text:
    """Return the header of a report: machine, command, and minutes that the run took."""
    return labelled(title, machine=str(machine), command=f"{commands(machine)}; {seconds / 60:.1f} minutes")


def labelled(title: str, **lines: str) -> Text:
    """Return a title with lines below it, each behind its name."""
    parts = [part for name, line in lines.items() for part in ((f"{name:<9}", "dim"), f"{line}\n")]
    return Text.assemble((f"{title}\n", "bold"), *parts)


def commands(machine: Machine) -> str:
    """All that made the results, below one another in a header."""
    return "\n         ".join(machine.commands)


def short(text: str, most: int = 60) -> str:
    """A text for a cell, of at most so many characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


_MARKS = {
    True: Text("✓", style="green"),
    False: Text("✗", style="bold red"),
    UNDECIDED: Text("?", style="yellow"),
}


def marked(text: str, reached: Reached) -> Text:
    """``text`` with a sign that says whether its target is reached; as wide where there is none."""
    return Text(f"{text}  ") if reached is None else Text.assemble(text, " ", _MARKS[reached])


def bounded(value: float | None, form: str, *, least: float | None = None, most: float | None = None) -> RenderableType:
    """Write a number with a sign that says whether it lies within bounds.

    Args:
        value: the number; ``None`` leaves the cell empty.
        form: such as ``".2f"``.
        least, most: the bounds, one of them; without one there is no sign.
    """
    if value is None:
        return ""
    reached = value >= least if least is not None else value <= most if most is not None else None
    return marked(format(value, form), reached)
