"""``Bench``: what makes subjects, ways, a loop and a report one command of ``python -m bench``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.cli.options import Options
from bench.errors import BenchError
from bench.results.charts import require_drawable
from bench.results.files import save
from bench.results.record import Kind, Record
from bench.results.report import Report
from bench.results.tables import console
from bench.runner.clock import threads

FOLDER = Path("bench-results")  # of the current folder, for what is given no other place


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
