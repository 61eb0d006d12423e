"""The tables in ``data/``: how they are made, written and read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from integrations.policies.codebooks.catalogue import FUNCTIONS
from integrations.policies.codebooks.fitting import Parity, fit_codebooks, fit_tables
from integrations.policies.codebooks.objective import WEIGHTS
from integrations.policies.codebooks.slopes import Slope
from integrations.policies.codebooks.steps import LevelTable, StepTable

SMOOTH = tuple(name for name, function in FUNCTIONS.items() if not function.piecewise)
"""The functions that have a file, with the defaults of their parameters."""

WIDTHS = tuple(range(1, 9))

# Twice the default of ``approximate``, since the files are made once. More cells reduce the error by less than 1e-4 of
# it.
_CELLS = 4000

_FOLDER = files("integrations.policies.codebooks") / "data"


@lru_cache  # a wide table's many numbers are checked once
def shipped_table(function: str, bits: int, weight: str, even: bool) -> StepTable:
    """The step table of a function in ``SMOOTH``; ``even`` for steps of ``|x|``, which even derivatives have."""
    boundaries, levels = _read(function)[weight]["even" if even else "steps"][bits - 1]
    return StepTable(tuple(boundaries), tuple(levels), even)


@lru_cache
def shipped_levels(function: str, bits: int, weight: str) -> LevelTable:
    """The codebook of a function in ``SMOOTH``."""
    return LevelTable(tuple(_read(function)[weight]["codebooks"][bits - 1]))


def fitted(function: str, widths: Sequence[int] = WIDTHS) -> dict[str, Any]:
    """The content of a function's file: for each weight, the step tables and codebooks of these widths.

    Levels have 7 digits, and boundaries float32's 9, which tell on which side of a jump a boundary is.
    """
    slope = Slope(function)
    counts = [2**bits for bits in widths]
    found = {}
    for weight in WEIGHTS:
        tables: dict[str, Any] = {}
        for kind in ("steps", "even") if slope.even else ("steps",):
            parity: Parity = "even" if kind == "even" else "none"
            steps = fit_tables(slope, counts, weight=weight, parity=parity, cells=_CELLS)
            tables[kind] = [[_short(table.boundaries, 9), _short(table.levels)] for table in steps]
        codebooks = fit_codebooks(slope, counts, weight=weight, cells=_CELLS)
        tables["codebooks"] = [_short(table.levels) for table in codebooks]
        found[weight] = tables
    return found


def write(function: str, content: Mapping[str, Any], folder: Path) -> Path:
    """Writes a function's file, one table a line."""
    lines = []
    for weight, tables in content.items():
        parts = []
        for kind, rows in tables.items():
            joined = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
            parts.append(f'"{kind}":[\n{joined}\n]')
        lines.append(f'"{weight}":{{\n' + ",\n".join(parts) + "\n}")
    path = folder / f"{function}.json"
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    return path


def regenerate(functions: Iterable[str], folder: Path | None = None) -> Iterable[Path]:
    """Fits functions again and writes their files, by default into the package."""
    target = folder or Path(str(_FOLDER))
    target.mkdir(parents=True, exist_ok=True)
    for function in functions:
        yield write(function, fitted(function), target)


@lru_cache
def _read(function: str) -> Any:
    return json.loads((_FOLDER / f"{function}.json").read_text(encoding="utf-8"))


def _short(numbers: Iterable[float], digits: int = 7) -> list[float]:
    return [float(f"{number:.{digits}g}") + 0.0 for number in numbers]
