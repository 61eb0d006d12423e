"""GACT's README: three graph networks at seven levels, for accuracy and memory, and what its abstract claims.

Its table of choices has no numbers: what it publishes is the command for each. Those of the paper are on the pages of
``vision``, ``text`` and ``search``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import RenderableType

from bench.readmes.made import NOT_MEASURED, Made, recorded
from bench.results.tables import columns
from bench.suites.gnn.results import REFERENCE
from bench.suites.gnn.summary import Row, rows

FILES = ("gnn-cpu.json", "gnn-levels-cpu.json")
"""Of a row that several have, that of the most seeds is taken, and the later of those with as many."""

ARCHITECTURES = ("gcn", "sage", "gat")
LEVELS = ("L1", "L1.1", "L1.2", "L2", "L2.1", "L2.2", "L3")


def table(folder: Path) -> Made:
    """A row for each network at each level, full precision first.

    Args:
        folder: of the results.

    Raises:
        BenchError: a file holds something else.
    """
    results = [one for file in FILES if (one := recorded(folder, file, "gnn")) is not None]
    found: dict[tuple[str, str], Row] = {}
    for candidate in (candidate for file in results for candidate in rows(file)):
        key = candidate.model, candidate.level
        if key not in found or len(candidate.accuracies) >= len(found[key].accuracies):
            found[key] = candidate
    made = columns(
        "ARCH",
        "LEVEL",
        "accuracy, %\nmeasured",
        "difference, points\nmeasured",
        "activations\ntimes smaller, measured",
        "peak\ntimes smaller, measured",
        "python -m bench gnn",
        labels=2,
    )
    made.columns[-1].justify = "left"
    for architecture in ARCHITECTURES:
        for level in (REFERENCE, *LEVELS):
            row = found.get((architecture, level))
            # Full precision is run beside every level.
            command = f"--model {architecture} --level {level if level != REFERENCE else LEVELS[0]} --dataset cora"
            if row is not None and row.accuracies:
                command += f" --seeds {len(row.accuracies)}"
            made.add_row(architecture, "full precision" if level == REFERENCE else level, *_measured(row), command)
    return Made(made, [*results])


def _measured(row: Row | None) -> Iterator[RenderableType]:
    if row is None:
        yield from (NOT_MEASURED, "", "", "")
        return
    spread = "" if row.accuracy_spread is None else f" ± {row.accuracy_spread:.1f}"
    yield NOT_MEASURED if row.accuracy is None else f"{row.accuracy:.1f}{spread}"
    yield "" if row.level == REFERENCE or row.difference is None else f"{row.difference.mean:+.2f}"
    yield "" if row.ratio is None else f"{row.ratio:.1f}"
    yield "" if row.level == REFERENCE or row.peak_ratio is None else f"{row.peak_ratio:.2f}"
