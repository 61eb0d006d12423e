"""Results of ``python -m bench kernels --estimate`` as text."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.errors import BenchError
from bench.kernels.contenders import COMPRESS, DECOMPRESS
from bench.kernels.estimate import ARCHITECTURE, CODECS, DTYPES, FLOAT8, Count, EstimateResults
from bench.kernels.sass import INTEGER


def render(results: EstimateResults) -> RenderableType:
    """A table of all kernels, and what it is made of."""
    table = Table(title="Estimated from compiled code, nothing was run", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("estimated for an H200, not run", no_wrap=True)
    for heading in ("instructions", "of the integer pipe", "of a copy"):
        if results.against:
            table.add_column(f"{heading}, before", justify="right")
        table.add_column(heading, justify="right")
    for what in (COMPRESS, DECOMPRESS):
        for dtype in DTYPES:
            for codec, bits in CODECS:
                now = results.get(codec, what, dtype, bits, earlier=False)
                before = results.get(codec, what, dtype, bits, earlier=True)
                stored = FLOAT8 if codec == FLOAT8 else f"{bits} bit{'s' if bits > 1 else ''}"
                if now is not None:
                    table.add_row(f"{what}, {dtype}, {stored}", *_cells([before, now] if before else [now]))
    against = f"before: commit {results.against}\n" if results.against else ""
    note = f"nvcc {results.compiler} for {ARCHITECTURE}; instructions of a thread, for 32 elements\n{against}"
    return Group(Text(note, style="dim"), table)


def _cells(counts: list[Count]) -> list[str]:
    return [
        *(str(one.instructions) for one in counts),
        *(str(one.pipes.get(INTEGER, 0)) for one in counts),
        *(f"{one.of_copy:.2f}" for one in counts),
    ]


def no_chart(results: EstimateResults, path: Path) -> None:
    """Raises ``BenchError``: the table says it all."""
    raise BenchError("an estimate has no chart; leave --chart out")
