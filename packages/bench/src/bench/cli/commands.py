"""What each command of ``python -m bench`` does with its options: it runs, writes, prints and draws."""

from __future__ import annotations

from argparse import Namespace

from rich.errors import NotRenderableError

from bench.cli import markdown, records
from bench.cli.bench import require_writable
from bench.errors import BenchError
from bench.results.tables import console

_CONTRADICTIONS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, NotRenderableError)
"""What tables raise of entries whose parts do not go together: a file says what it says."""


def report(options: Namespace) -> None:
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


def show(options: Namespace) -> None:
    """``python -m bench show``."""
    require_writable(None, options.chart)
    record = records.load(options.results)
    try:
        console().print(records.shown(record))
    except _CONTRADICTIONS as error:
        raise BenchError(f"{options.results} holds entries that contradict each other ({error!r})") from error
    if options.chart is not None:
        records.draw(record, options.chart)
