"""What is printed of ``python -m bench kernels --estimate``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.table import Table
from rich.text import Text

from bench.results.record import Record
from bench.results.report import Report
from bench.results.tables import Column, table
from bench.suites.kernels.contenders import COMPRESS, DECOMPRESS
from bench.suites.kernels.estimate import ARCHITECTURE, CODECS, DTYPES, FLOAT8, Count
from bench.suites.kernels.sass import INTEGER

Row = tuple[Count, Count | None]
"""A kernel now, and that of the commit that was compared with."""


def head(record: Record) -> Text:
    """What the counts are made of."""
    against = record.settings["against"]
    earlier = f"before: commit {against}\n" if against else ""
    made = f"nvcc {record.settings['compiler']} for {ARCHITECTURE}; instructions of a thread, for 32 elements\n"
    return Text(f"{made}{earlier}", style="dim")


def tables(record: Record) -> Iterator[Table]:
    """One of all kernels."""
    kernels = [
        {"codec": codec, "what": what, "dtype": dtype, "bits": bits}
        for what in (COMPRESS, DECOMPRESS)
        for dtype in DTYPES
        for codec, bits in CODECS
    ]
    rows = [
        (now, record.find(Count, earlier=True, **kernel))
        for kernel in kernels
        if (now := record.find(Count, earlier=False, **kernel)) is not None
    ]
    beside = bool(record.settings["against"])
    made = table(
        rows,
        ("estimated for an H200, not run", lambda row: _named(row[0])),
        *_both("instructions", lambda count: str(count.instructions), beside),
        *_both("of the integer pipe", lambda count: str(count.pipes.get(INTEGER, 0)), beside),
        *_both("of a copy", lambda count: f"{count.of_copy:.2f}", beside),
    )
    made.title, made.title_justify = "Estimated from compiled code, nothing was run", "center"
    yield made


def _named(count: Count) -> str:
    stored = FLOAT8 if count.codec == FLOAT8 else f"{count.bits} bit{'s' if count.bits > 1 else ''}"
    return f"{count.what}, {count.dtype}, {stored}"


def _both(heading: str, cell: Callable[[Count], str], beside: bool) -> list[Column[Row]]:
    """A column, and before it that of the commit that was compared with."""
    now: Column[Row] = heading, lambda row: cell(row[0])
    return [(f"{heading}, before", lambda row: cell(row[1]) if row[1] else ""), now] if beside else [now]


REPORT = Report("Estimated", tables, head=head, draw="an estimate has no chart")
