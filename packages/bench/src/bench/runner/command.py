"""``Bench``: what makes a suite a command of ``python -m bench``; and the options of commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.errors import BenchError
from bench.results.charts import require_drawable
from bench.results.record import Kind, Record, save
from bench.results.report import Report
from bench.results.tables import console
from bench.runner.clock import threads
from bench.units import GIB, KIB, MIB

FOLDER = Path("bench-results")  # of the current folder, for files that are given no other place


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
        charted: the part that the chart shows; empty: any.
        others: kinds of record that the command makes, too, and their reports.
    """

    kind: Kind
    what: str
    options: Callable[[Options], None]
    run: Callable[[argparse.Namespace], Record]
    report: Report
    check: Callable[[argparse.Namespace], None] = lambda options: None
    done: Callable[[Record, argparse.Namespace], None] = lambda record, options: None
    charted: str = ""
    others: tuple[tuple[Kind, Report], ...] = ()

    @property
    def reports(self) -> dict[str, tuple[Kind, Report]]:
        """All kinds of record that it knows, by name."""
        return {kind.name: (kind, report) for kind, report in ((self.kind, self.report), *self.others)}

    def command(self, options: argparse.Namespace) -> None:
        """Check, measure, write, print and draw.

        Raises:
            BenchError: the options do not go together, there is no such device, or a file cannot be written.
        """
        if getattr(options, "device", "cpu") == "cuda" and not torch.cuda.is_available():
            raise BenchError("device cuda is not available: torch finds no usable GPU; use --device cpu")
        self.check(options)
        if options.chart is not None and self.charted and self.charted not in options.parts:
            raise BenchError(f"a chart shows the part {self.charted}; add --part {self.charted}, or leave --chart out")
        require_writable(options.json, options.chart)
        with threads(options.threads):
            record = self.run(options)
        if options.json is not None:
            save(record, options.json)
        _, report = self.reports[record.kind]
        console().print(report.render(record))
        if options.chart is not None:
            report.save_chart(record, options.chart)
        self.done(record, options)


def default_file(name: str) -> Path:
    """Where a file goes that was given no place.

    Raises:
        BenchError: the folder cannot be made.
    """
    try:
        FOLDER.mkdir(exist_ok=True)
    except OSError as error:
        raise BenchError(f"{FOLDER} cannot be made ({error.strerror}); use --json and --chart") from error
    return FOLDER / name


def require_writable(json: Path | None, chart: Path | None) -> None:
    """Before minutes of work, that their results can be written and drawn.

    Raises:
        BenchError: they cannot.
    """
    for file in (json, chart):
        if file is not None and not file.parent.is_dir():
            raise BenchError(f"{file} cannot be written: there is no folder {file.parent}; make it first")
        if file is not None and file.is_dir():
            raise BenchError(f"{file} cannot be written: it is a folder; name a file in it")
    if chart is not None:
        require_drawable(chart)


class Options:
    """Declares the options of a command, and settles what was not said.

    The namespace that a bench gets has a value for each: what was said, otherwise the quick value with ``--quick``, and
    otherwise the default.

    Args:
        parser: of the command.
    """

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._parser = parser
        self._usual: dict[str, tuple[Any, Any]] = {}
        self.add: Callable[..., object] = parser.add_argument

    def many(
        self,
        flag: str,
        choices: Iterable[str] | None,
        words: str,
        *,
        default: Sequence[str] = (),
        quick: Sequence[str] | None = None,
        metavar: str | None = None,
        kind: Callable[[str], str] = str,
    ) -> None:
        """Names, each given by a flag that may be repeated. The namespace has them without repetitions, under the
        flag's name with an s.

        Args:
            flag: such as ``--part``.
            choices: that there are; ``None`` where ``kind`` knows.
            words: for the help text.
            default, quick: those by default, and in a quick run.
            metavar: in the help text, in place of all choices.
            kind: of one name.
        """
        name = f"{flag.removeprefix('--').replace('-', '_')}s"
        known = None if choices is None else list(choices)
        words = words.replace("%", "%%")
        self.add(flag, dest=name, action="append", choices=known, metavar=metavar, type=kind, help=words)
        self._usual[name] = list(default), list(default if quick is None else quick)

    def number(
        self,
        flag: str,
        words: str,
        *,
        default: int,
        quick: int | None = None,
        kind: Callable[[str], int] | None = None,
    ) -> None:
        """A whole number, with the one by default behind the words."""
        self.add(flag, type=kind or positive, help=f"{words}; default: {default}")
        self._usual[flag.removeprefix("--")] = default, default if quick is None else quick

    def part(self, choices: Sequence[str], *, quick: Sequence[str] | None = None, words: str = "default: all") -> None:
        """The parts of a bench that are run."""
        self.many("--part", choices, f"part to run, repeatable; {words}", default=choices, quick=quick)

    def quick(self, words: str) -> None:
        """A short run, of which ``words`` say what it has."""
        self.add(
            "--quick", action="store_true", help=f"a short run that shows that it works: {words}".replace("%", "%%")
        )

    def seed(self, words: str) -> None:
        """Of whatever is drawn."""
        self.add("--seed", type=int, default=0, help=f"seed {words}; default: %(default)s")

    def data_root(self, words: str) -> None:
        """The folder of data sets."""
        self.add("--data-root", type=Path, metavar="DIR", help=words)

    def deadline(self, what: str) -> None:
        """The time by which a command ends, of which ``what`` is measured one by one."""
        words = f"time limit: after it, no {what} starts and a running one is ended; default: none"
        self.add("--deadline", type=positive, metavar="SECONDS", help=words)

    def chart(self, place: str = "") -> None:
        """The file of the chart; ``place`` says where it goes by default."""
        self.add("--chart", type=Path, metavar="FILE", help=f"draw a chart into this .png, .svg or .pdf{place}")

    def files(self, *, threads: int | None = None, device: bool = True, json: str = "", chart: str = "") -> None:
        """Device, threads, and the files of record and chart, which all commands have.

        Args:
            threads: by default; ``None``: as many as torch takes by itself.
            device: whether it can be chosen.
            json, chart: where the files go by default, in words.
        """
        if device:
            self.add("--device", default="cpu", choices=("cpu", "cuda"), help="device to run on; default: %(default)s")
        words = "number of threads of torch's operators; default: %(default)s"
        self.add("--threads", type=positive, default=threads or torch.get_num_threads(), help=words)
        words = "write raw values, machine and versions to this file; entries that it has are not measured again"
        self.add("--json", type=Path, metavar="FILE", help=f"{words}{json}")
        self.chart(chart)

    def settle(self, namespace: argparse.Namespace) -> None:
        """Gives what was not said its value, and names without repetitions; ``said`` has what was said."""
        quick = getattr(namespace, "quick", False)
        namespace.said = {name for name in self._usual if getattr(namespace, name) is not None}
        for name, (default, in_a_quick_run) in self._usual.items():
            said = getattr(namespace, name)
            value = said if said is not None else in_a_quick_run if quick else default
            setattr(namespace, name, list(dict.fromkeys(value)) if isinstance(value, list) else value)


# ---- types of options' values ----


def positive(text: str, least: int = 1) -> int:
    """A whole number."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < least:
        raise argparse.ArgumentTypeError(f"must be a whole number from {least}, got {text!r}")
    return value


def size(text: str) -> int:
    """Bytes of a tensor. A multiple of 4096 has whole groups in every dtype."""
    for unit, name in ((KIB, "KiB"), (MIB, "MiB"), (GIB, "GiB")):
        number = text.removesuffix(name)
        if number != text and number.isdecimal() and int(number) * unit > 0 and int(number) * unit % (4 * KIB) == 0:
            return int(number) * unit
    raise argparse.ArgumentTypeError(
        f"must be a multiple of 4KiB with a unit, such as 4KiB, 16MiB or 1GiB, got {text!r}"
    )
