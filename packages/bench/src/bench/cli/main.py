"""The command line: ``python -m bench COMMAND``, with a command for each benchmark, and ``show``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from bench.cli import commands
from bench.cli.bench import Bench
from bench.cli.options import Options
from bench.cli.suites import BENCHES
from bench.errors import BenchError


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
            "python -m bench: interrupted; only what goes to --json one by one was written, and is taken up",
            file=sys.stderr,
        )
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m bench", description="What compressed activations save and cost, measured.")
    parsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for bench in BENCHES.values():
        _add(parsers, bench)

    show = parsers.add_parser("show", help="print, and draw, results that were recorded with --json")
    show.set_defaults(command=commands.show)
    show.add_argument("results", type=Path, metavar="FILE")
    Options(show).chart()

    report = parsers.add_parser("report", help="render recorded files as the Markdown pages that docs link to")
    report.set_defaults(command=commands.report)
    _add_folder(report, "--results", "packages/bench/results", "of recorded files")
    _add_folder(report, "--pages", "docs/benchmarks/results", "that the pages are written to, one for each file")
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
