"""FewBit's table: the peak of RoBERTa on MRPC, with 3-bit GELUs and randomized linear layers, on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from types import MappingProxyType

from rich.text import Text

from bench.readmes.made import NOT_MEASURED, Made, recorded
from bench.results.tables import columns, marked
from bench.suites.fewbit.report import ROWS
from bench.suites.fewbit.results import Peak
from bench.units import MIB
from bench.ways.roberta import WAYS

FILE = "fewbit-memory-cpu.json"

PUBLISHED: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        name: (ROWS[way.bits, way.ratio].gib, round(100 * ROWS[way.bits, way.ratio].saving, 1))
        for name, way in WAYS.items()
    }
)
"""Of the README (Bershatsky et al., 2022; Novikov et al., 2022): peak in GiB and saving in percent, MRPC, batch 128."""

_COMMAND = "python -m bench fewbit --part memory"


def table(folder: Path) -> Made:
    """A row for each of the four.

    Args:
        folder: of the results.

    Raises:
        BenchError: a file holds something else.
    """
    results = recorded(folder, FILE, "fewbit")
    made = columns(
        "RoBERTa-base",
        "peak, GiB\npublished",
        "saving, %\npublished",
        "activation peak, MiB\nmeasured",
        "saving, %\nmeasured",
        "with gradients, MiB\nmeasured",
        "saving, %\nmeasured",
        "raw peak, MiB\nmeasured",
        "saving, %\nmeasured",
        "command",
    )
    made.columns[-1].justify = "left"
    peaks = {peak.way: peak for peak in results.of(Peak) if peak.raw_bytes} if results is not None else {}
    plain = peaks.get("vanilla")
    for way, (gibibytes, saving) in PUBLISHED.items():
        published = [way, f"{gibibytes:.2f}", f"{saving:.1f}" if saving else ""]
        peak = peaks.get(way)
        if peak is None or plain is None:
            made.add_row(*published, NOT_MEASURED, *[""] * 5, _COMMAND)
            continue
        row: list[Text | str] = []
        for nbytes, reference in (
            (peak.activation_bytes, plain.activation_bytes),
            (median(peak.peak_bytes), median(plain.peak_bytes)),
            (median(peak.raw_bytes), median(plain.raw_bytes)),
        ):
            found = 100 * (1 - nbytes / reference)
            row += [f"{nbytes / MIB:,.1f}", "" if peak is plain else marked(f"{found:.1f}", found >= saving)]
        made.add_row(*published, *row, _COMMAND)
    return Made(made, [results] if results is not None else [])
