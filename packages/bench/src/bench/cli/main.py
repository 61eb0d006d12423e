"""The command line: ``python -m bench COMMAND``."""

from __future__ import annotations

import argparse
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rich.errors import NotRenderableError

from bench.cli import markdown
from bench.cli.suites import BENCHES, find_report, load
from bench.errors import BenchError
from bench.results.tables import console
from bench.runner.command import Bench, Options, require_writable

_CONTRADICTIONS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, NotRenderableError)
"""What tables raise of entries whose parts do not go together: a file says what it says."""


def run_report(options: Namespace) -> None:
    """``python -m bench report``."""
    files = sorted(options.results.glob("*.json"))
    if not files:
        raise BenchError(f"--results must name a folder of recorded files, got {options.results}")
    try:
        pages = markdown.render_pages(files)
    except _CONTRADICTIONS as error:
        raise BenchError(f"{options.results} holds entries that contradict each other ({error!r})") from error
    stale = markdown.write_pages(pages, options.pages, check=options.check)
    if options.check and stale:
        raise BenchError(f"{options.pages} is out of date in {', '.join(stale)}; run the command without --check")
    print(f"{options.pages}: {len(stale)} of {len(pages)} pages written" if stale else f"{options.pages}: as it was")


def run_show(options: Namespace) -> None:
    """``python -m bench show``."""
    require_writable(None, options.chart)
    record = load(options.results)
    try:
        console().print(find_report(record).render(record))
    except _CONTRADICTIONS as error:
        raise BenchError(f"{options.results} holds entries that contradict each other ({error!r})") from error
    if options.chart is not None:
        find_report(record).save_chart(record, options.chart)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage above it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (--help lists the options)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command. Returns 0; 1 after one line on stderr that says what is wrong; 130 when interrupted."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], None] = options.command
    try:
        command(options)
    except BenchError as error:
        print(f"python -m bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            "python -m bench: interrupted; the same command continues with the results that --json has written",
            file=sys.stderr,
        )
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m bench", description="Measure what compressed activations save and cost.")
    parsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for bench in BENCHES.values():
        _add(parsers, bench)

    show = parsers.add_parser("show", help="print results that were recorded with --json, and draw a chart")
    show.set_defaults(command=run_show)
    show.add_argument("results", type=Path, metavar="FILE")
    Options(show).chart()

    report = parsers.add_parser("report", help="render recorded files as the Markdown pages that docs link to")
    report.set_defaults(command=run_report)
    _add_folder(report, "--results", "packages/bench/results", "of recorded files")
    _add_folder(report, "--pages", "docs/results", "for the pages, one for each file")
    report.add_argument("--check", action="store_true", help="write nothing; fail if a page is out of date")
    return parser


def _add_folder(parser: argparse.ArgumentParser, name: str, default: str, what: str) -> None:
    """An option that names a folder."""
    words = f"folder {what}; default: %(default)s"
    parser.add_argument(name, type=Path, default=Path(default), metavar="DIR", help=words)


def _add(parsers: Any, bench: Bench) -> None:
    """The command of a bench."""
    parser = parsers.add_parser(bench.kind.name, help=bench.what)
    options = Options(parser)
    bench.options(options)

    def command(said: argparse.Namespace) -> None:
        options.settle(said)
        bench.command(said)

    parser.set_defaults(command=command)
