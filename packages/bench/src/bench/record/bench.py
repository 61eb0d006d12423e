"""``Bench``: what makes subjects, ways, a loop and a report one command of ``python -m bench``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from rich.console import Group, RenderableType
from rich.text import Text

from bench.errors import BenchError
from bench.kernels.clock import threads
from bench.layout import console, header
from bench.record.files import save
from bench.record.kind import Kind
from bench.record.options import Options
from bench.record.record import Record
from bench.style import STYLE, require_drawable, write

FOLDER = Path("bench-results")  # of the current folder, for what is given no other place

Lines = Callable[[Record], Iterable[str]]


@dataclass(frozen=True)
class Report:
    """What is printed of a record.

    Attributes:
        title: in its header.
        tables: and what else is printed below the header.
        notes: that stand below the tables.
        targets: what was asked of the numbers, in words; none where nothing was.
        head: the header, where it has more than others.
        draw: makes the chart, or raises ``BenchError`` where there is nothing to draw; a text says why there is none.
    """

    title: str
    tables: Callable[[Record], Iterable[RenderableType]]
    notes: Lines = lambda record: ()
    targets: Lines = lambda record: ()
    head: Callable[[Record], RenderableType] | None = None
    draw: Callable[[Record], Figure] | str = "there is no chart"

    def render(self, record: Record) -> Group:
        """Header, tables and notes."""
        made = self.head or (lambda record: header(self.title, record.machine, record.seconds))
        notes = "\n".join(self._notes(record))
        return Group(made(record), *self.tables(record), *([Text(notes, style="dim")] if notes else []))

    def save_chart(self, record: Record, path: Path) -> None:
        """Draws a record into a file of the type that its name says, such as PNG or SVG.

        Raises:
            BenchError: there is nothing to draw, the type is unknown, or the file cannot be written.
        """
        if isinstance(self.draw, str):
            raise BenchError(f"{self.draw}; leave --chart out")
        require_drawable(path)
        with mpl.rc_context(STYLE):
            write(self.draw(record), path)

    def _notes(self, record: Record) -> Iterator[str]:
        yield from (f"Left out: {reason}." for reason in record.skipped)
        yield from self.notes(record)
        if targets := "; ".join(self.targets(record)):
            yield f"✓ reached, ✗ not: {targets}."


@dataclass(frozen=True)
class Bench:
    """A command.

    Attributes:
        kind: of its records, whose name is the command's.
        what: it does, in the list of commands.
        options: declares those of the command.
        run: measures what they ask for, with as many threads of torch as they say.
        report: of its records.
        check: sees whether options go together, before any work, and settles what is particular to the command.
        done: is called with what was found, when all is written and printed.
        others: kinds of record that the command makes, too, and their reports.
    """

    kind: Kind
    what: str
    options: Callable[[Options], None]
    run: Callable[[argparse.Namespace], Record]
    report: Report
    check: Callable[[argparse.Namespace], None] = lambda options: None
    done: Callable[[Record, argparse.Namespace], None] = lambda record, options: None
    others: tuple[tuple[Kind, Report], ...] = ()

    @property
    def reports(self) -> dict[str, tuple[Kind, Report]]:
        """All kinds of record that it knows, by name."""
        return {kind.name: (kind, report) for kind, report in ((self.kind, self.report), *self.others)}

    def command(self, options: argparse.Namespace) -> None:
        """Runs it: checks, measures, writes, prints and draws.

        Raises:
            BenchError: the options do not go together, there is no such device, or a file cannot be written.
        """
        if getattr(options, "device", "cpu") == "cuda" and not torch.cuda.is_available():
            raise BenchError("device cuda is not there: torch finds no usable GPU; use --device cpu")
        self.check(options)
        json, chart = getattr(options, "json", None), getattr(options, "chart", None)
        require_writable(json, chart, getattr(options, "page", None))
        with threads(options.threads):
            record = self.run(options)
        if json is not None:
            save(record, json)
        _, report = self.reports[record.kind]
        console().print(report.render(record))
        if chart is not None:
            report.save_chart(record, chart)
        self.done(record, options)


def default(name: str) -> Path:
    """Where a file goes that was given no place.

    Raises:
        BenchError: the folder cannot be made.
    """
    try:
        FOLDER.mkdir(exist_ok=True)
    except OSError as error:
        raise BenchError(f"{FOLDER} cannot be made ({error.strerror}); use --json and --chart") from error
    return FOLDER / name


def require_writable(json: Path | None, chart: Path | None, page: Path | None = None) -> None:
    """Before minutes of work, that their results can be written and drawn.

    Raises:
        BenchError: they cannot.
    """
    for file in (json, chart, page):
        if file is not None and not file.parent.is_dir():
            raise BenchError(f"{file} cannot be written: there is no folder {file.parent}")
        if file is not None and file.is_dir():
            raise BenchError(f"{file} cannot be written: it is a folder; name a file in it")
    if chart is not None:
        require_drawable(chart)
