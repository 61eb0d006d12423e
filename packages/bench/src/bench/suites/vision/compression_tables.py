"""The tables of what image models keep, in every way of compressing: classification, and dense prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bench.models.dense import DENSE
from bench.models.image_models import MODELS, SIZE
from bench.results.published import published
from bench.results.tables import bounded, columns, dim, marked, mib, number, table
from bench.suites.vision.entries import Cell, DenseCell
from bench.ways.conversions import PLAIN

PUBLISHED = published("vision")

MODEL = "resnet50"

KEPT: Mapping[str, float] = MappingProxyType({"L1": 4.8, "L2": 6.7, "L2.2": 11.3, "Q-layers L3": 12.0})
"""Times fewer bytes at least, by way: GACT's figures at 4 and 2 bits on average, ActNN's; L1 has norms in 8 bits."""

PEAK = 4.4
"""Times smaller the peak, which was GACT's while what it kept became 11.3 times smaller."""

PEAKED = ("L2.2", "Q-layers L3")  # of 2 bits on average, as that was


def compression_judged(cell: Cell) -> bool:
    """Whether something was asked of a model and its inputs."""
    return cell.model == MODEL and cell.size == SIZE


def least_kept(cell: Cell) -> float | None:
    """How many times fewer bytes a cell is asked to keep; ``None`` where nothing is asked."""
    return KEPT.get(cell.way) if compression_judged(cell) else None


def peaked_enough(cell: Cell, ratio: float) -> bool | None:
    """Whether one of a cell's ``peak_ratios`` is what was asked; ``None``: nothing was."""
    return ratio > PEAK if cell.way in PEAKED and compression_judged(cell) else None


Beside = tuple[Cell, Cell | None]
"""A cell, and the untouched model's with the same inputs; ``None`` where that was not measured."""


def _beside_plain(cells: Iterable[Cell]) -> list[Beside]:
    """The cells by model and inputs, each with the untouched model's."""
    plain = {cell.inputs: cell for cell in cells if cell.way == PLAIN}
    return [(cell, plain.get(cell.inputs)) for cell in cells]


def compression_tables(cells: Sequence[Cell]) -> Iterator[Table]:
    """What is kept and the peaks, by model and inputs."""
    rows = _beside_plain(cells)
    yield table(
        rows,
        ("compression", lambda row: f"  {row[0].way}"),
        (
            "kept before\nMiB",
            lambda row: mib(row[0].original_bytes) or _of_others(row, lambda _, plain: mib(plain.original_bytes)),
        ),
        ("after\nby report", lambda row: _of_others(row, lambda cell, _: mib(cell.stored_bytes))),
        ("\nby allocator", lambda row: _of_others(row, lambda cell, plain: mib(cell.allocated_bytes(plain)))),
        (
            "times smaller\nmeasured",
            lambda row: _of_others(row, lambda cell, plain: bounded(cell.ratio(plain), ".1f", least=least_kept(cell))),
        ),
        (
            "\npublished",
            lambda row: _of_others(row, lambda cell, _: _ratios(cell, "kept")),
        ),
        above=lambda row: where(row[0]),
        instead=_outcome,
    )
    yield table(
        rows,
        ("peak", lambda row: f"  {row[0].way}"),
        ("\nMiB", lambda row: mib(row[0].peak_bytes)),
        ("gradients\nthere", lambda row: mib(row[0].standing_peak_bytes)),
        ("times\nsmaller", lambda row: _peak_ratio(row, 0)),
        ("gradients\nthere", lambda row: _peak_ratio(row, 1)),
        ("\npublished", _published_peaks),
        ("reached in", lambda row: row[0].peak_in.removeprefix("backward: ").replace("aten::", "")),
        above=lambda row: where(row[0]),
        instead=_outcome,
    )


def _outcome(row: Beside) -> list[RenderableType] | None:
    return [dim(row[0].outcome)] if row[0].outcome else None


def _of_others(row: Beside, text: Callable[[Cell, Cell], RenderableType]) -> RenderableType:
    """A cell that compares a way with the untouched model, whose own is empty."""
    cell, plain = row
    return "" if plain is None or cell is plain else text(cell, plain)


def _peak_ratio(row: Beside, place: int) -> RenderableType:
    cell, plain = row
    ratios = None if plain is None or cell is plain else cell.peak_ratios(plain)
    return "" if ratios is None else marked(f"{ratios[place]:.2f}", peaked_enough(cell, ratios[place]))


def _published_peaks(row: Beside) -> str:
    cell, plain = row
    if plain is None or cell is plain or cell.peak_ratios(plain) is None:
        return ""
    return _ratios(cell, "peak")


def where(cell: Cell) -> str:
    """The model and its inputs in words."""
    order = ", channels last" if cell.channels_last else ""
    return f"{MODELS[cell.model].title}, {cell.batch} at {cell.size}{order}"


def published_of(cell: Cell) -> list[dict[str, Any]]:
    """What was published of a cell's model and way."""
    return [one for one in PUBLISHED["compressed"] if (one["model"], one["way"]) == (cell.model, cell.way)]


def _ratios(cell: Cell, what: str) -> str:
    """Published times by which ``kept`` or ``peak`` becomes smaller."""
    pairs = (one[what] for one in published_of(cell))
    return ", ".join(f"{pair[0] / pair[1]:.1f}" for pair in pairs if pair is not None)


def dense_table(cells: Sequence[DenseCell]) -> Table:
    """A heading for each model and its inputs, with what was published of it, and a row for each way."""
    made = columns(
        "dense",
        "kept\nMiB",
        "by allocator\nMiB",
        "times\nsmaller",
        "peak\nMiB",
        "times\nsmaller",
        "gradient's\nerror",
        "published:\nofficial",
        "published:\nActNN",
    )
    for _, found in groupby(cells, key=lambda cell: cell.inputs):
        some = list(found)
        trained = PUBLISHED["trained"][some[0].model]
        heading = Text(f"{_dense_where(some[0])} ({trained['metric']})", style="bold")
        made.add_row(heading, *[""] * 6, f"{trained['official']:.1f}", f"{trained['compressed']:.1f}")
        plain = next((cell for cell in some if cell.way == PLAIN), None)
        for cell in some:
            made.add_row(f"  {cell.way}", *_numbers(cell, plain))
    return made


def _dense_where(cell: DenseCell) -> str:
    return f"{DENSE[cell.model].title}, {cell.batch} at {cell.size}"


def _numbers(cell: DenseCell, plain: DenseCell | None) -> list[str]:
    if cell.outcome:
        return [cell.outcome]
    if plain is None or cell is plain:
        return [mib(cell.original_bytes), "", "", mib(cell.standing_peak_bytes)]
    ratio, peaks = cell.ratio(plain), cell.peak_ratios(plain)
    error = "not comparable" if cell.losses else ""
    return [
        mib(cell.stored_bytes),
        mib(cell.allocated_bytes(plain)),
        number(ratio, ".1f"),
        mib(cell.standing_peak_bytes),
        "" if peaks is None else f"{peaks[1]:.2f}",
        error if cell.gradient_error is None else f"{cell.gradient_error:.3g}",
    ]
