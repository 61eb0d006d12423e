"""What each command of ``python -m bench`` does with its options: it runs, writes, prints and draws."""

from __future__ import annotations

from argparse import Namespace

from rich.errors import NotRenderableError

from bench import pages
from bench.cli import records
from bench.cli.bench import require_writable
from bench.errors import BenchError
from bench.results.files import write_text
from bench.results.tables import console

_CONTRADICTIONS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, NotRenderableError)
"""What tables raise of entries whose parts do not go together: a file says what it says."""


def report(options: Namespace) -> None:
    """``python -m bench report``."""
    for page in options.page:
        try:
            text = page.read_text()
        except OSError as error:
            raise BenchError(f"{page} cannot be read ({error.strerror})") from error
        try:
            made = pages.rendered(text, options.results)
        except BenchError as error:
            raise BenchError(f"{page}: {error}") from error
        missing = [place for place in made.charts if not (page.parent / place).is_file()]
        if options.check:
            if made.text != text:
                raise BenchError(f"{page} has tables that are not those of {options.results}; run it without --check")
            if missing:
                raise BenchError(f"{page} shows {', '.join(missing)}, which is not there; run it without --check")
        for place, draw in made.charts.items():
            if not options.check:
                draw(page.parent / place)
        if made.text != text:
            write_text(page, made.text)
        print(f"{page}: {'as it was' if made.text == text else 'tables made anew'}")


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
