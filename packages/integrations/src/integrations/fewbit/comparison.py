"""The errors of the shipped tables, beside those of FewBit's and the optimum on a grid of 2,000 cells."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from integrations._common.entries import loaded, of_type
from integrations._step_tables.catalogue import FUNCTIONS
from integrations._step_tables.fitting import estimate_error
from integrations._step_tables.shipped import SMOOTH
from integrations._step_tables.tables import table

FILE = "fewbit_errors.json"

_KEYS = {"uniform": ("shipped", "optimal"), "normal": ("shipped_gauss", "optimal_gauss")}


def measured(function: str, weight: str, parity: str | None = None) -> list[float]:
    """The error of a function's table for 1 to 8 bits."""
    tables = (table(function, bits, weight=weight, parity="none" if parity == "none" else None) for bits in range(1, 9))
    return [estimate_error(function, steps, weight=weight) for steps in tables]


def reference(path: Path | None = None) -> dict[str, Any]:
    """Function -> bits -> the errors of FewBit's tables and of the optimum, from ``fewbit_errors.json``.

    Raises:
        OSError: no such file at ``path``, or else in the folder that ``ACTCORE_DATA`` names.
        ValueError: it is not such a file.
    """
    if path is None:
        if not os.environ.get("ACTCORE_DATA"):
            raise FileNotFoundError(f"{FILE} is not at hand: neither --reference nor ACTCORE_DATA names it")
        path = Path(os.environ["ACTCORE_DATA"]) / FILE
    try:
        content = loaded(path.read_text(encoding="utf-8"), "what measured FewBit's tables")
        for by_bits in content["functions"].values():
            for row in by_bits.values():
                {name: of_type(float, row[name], name) for names in _KEYS.values() for name in names}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} must hold errors by function and bits: {error!r}") from error
    return dict(content["functions"])


def render(path: Path | None = None, weight: str = "uniform") -> str:
    """A table in Markdown: at 1 to 4 bits FewBit's error, the optimum's and ours, at 5 to 8 ours.

    A function with an even derivative has a second row, of the steps of ``|x|`` that are used.
    """
    theirs, best = _KEYS[weight]
    known = reference(path)
    rows = [
        "| function | " + " | ".join(f"{bits} bit{'s' * (bits > 1)}" for bits in range(1, 9)) + " |",
        "|---" * 9 + "|",
    ]
    for name in SMOOTH:
        cells = []
        for bits, error in enumerate(measured(name, weight, "none"), start=1):
            row = known.get(name, {}).get(str(bits))
            cells.append(f"{row[theirs]:.3g} / {row[best]:.3g} / **{error:.3g}**" if row else f"**{error:.3g}**")
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
        if FUNCTIONS[name].even:
            rows.append(
                f"| {name}, parity | " + " | ".join(f"**{error:.3g}**" for error in measured(name, weight)) + " |"
            )
    return "\n".join(rows)
