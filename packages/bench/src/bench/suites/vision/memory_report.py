"""The tables of the parts ``compression`` and ``dense``: bytes that are kept and peaks, beside what was published."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bench.models.dense import DENSE
from bench.models.image_models import MODELS
from bench.results.tables import bounded, columns, dim, marked, mib, number, table
from bench.suites.vision.compression.results import Cell
from bench.suites.vision.dense.results import DenseCell
from bench.suites.vision.published import (
    COMPRESSED,
    KEPT,
    PEAK,
    PEAKED,
    TRAINED,
    TRAINED_SOURCE,
    Compressed,
    judged,
    least_kept,
    peaked_enough,
)
from bench.ways.conversions import PLAIN

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
            lambda row: _of_others(row, lambda cell, _: ", ".join(f"{one.ratio:.1f}" for one in _published(cell))),
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
    return ", ".join(f"{one.peak_ratio:.1f}" for one in _published(cell) if one.peak_ratio is not None)


def compression_notes(cells: Sequence[Cell]) -> Iterator[str]:
    """What stands below the tables."""
    yield (
        "compression: float32, random images. kept before: bytes that autograd alone keeps after a forward, without "
        "parameters, buffers and the batch. by report: what is kept instead, for Q-layers what autograd's graph has. "
        "by allocator: live bytes of the process, less what lives beside the untouched model's saved tensors. times "
        "smaller: than the untouched model's, by the larger of the two."
    )
    yield (
        "peak: of activations: the most during forward and backward, less what was there before and all gradients, "
        "some of which have not come into being by then. gradients there: with all of them before the step, which adds "
        "to them, so that nothing is to be subtracted. reached in: the last operator that makes the peak rise by more "
        "than 1 %, and its largest tensor; in backward where it does not say forward."
    )
    for cell in cells:
        if cell.outcome:
            yield f"{where(cell)}, {cell.way}: {cell.outcome}: {cell.failure or cell.does_not_apply}."
    sources = dict.fromkeys(one.source for one in _published_beside(cells))
    if sources:
        yield f"published: {'; '.join(map(_said, _published_beside(cells)))}. Sources: {'; '.join(sources)}."


def compression_targets(cells: Sequence[Cell]) -> Iterator[str]:
    """What is asked, if it is asked of one of the cells."""
    if any(judged(cell) for cell in cells):
        kept = ", ".join(f"{way} {least:g}" for way, least in KEPT.items())
        yield f"ResNet-50 keeps at least so many times less: {kept}"
        yield f"its peaks with {' and '.join(PEAKED)} more than {PEAK:g} times smaller, both ways of counting"


def where(cell: Cell) -> str:
    """The model and its inputs in words."""
    order = ", channels last" if cell.channels_last else ""
    return f"{MODELS[cell.model].title}, {cell.batch} at {cell.size}{order}"


def _published(cell: Cell) -> list[Compressed]:
    return [one for one in COMPRESSED if (one.model, one.way) == (cell.model, cell.way)]


def _published_beside(cells: Sequence[Cell]) -> list[Compressed]:
    return [one for one in COMPRESSED if any(one in _published(cell) for cell in cells)]


def _said(one: Compressed) -> str:
    if one.unit == "times":
        return f"{one.way}: {one.kept[0]:g} times less"
    peak = "" if one.peak is None else f", peak {one.peak[0]:g} to {one.peak[1]:g}"
    return f"{one.way} ({one.bits} bits, batch {one.batch}): {one.kept[0]:g} to {one.kept[1]:g} {one.unit}{peak}"


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
        published = TRAINED[some[0].model]
        heading = Text(f"{_dense_where(some[0])} ({published.metric})", style="bold")
        made.add_row(heading, *[""] * 6, f"{published.official:.1f}", f"{published.compressed:.1f}")
        plain = next((cell for cell in some if cell.way == PLAIN), None)
        for cell in some:
            made.add_row(f"  {cell.way}", *_numbers(cell, plain))
    return made


def dense_notes(cells: Sequence[DenseCell]) -> Iterator[str]:
    """What stands below the table."""
    yield (
        "dense: random weights, generated images and targets, float32, every norm BatchNorm2d in training mode, "
        "nothing frozen. kept: bytes that autograd keeps for backward; with hooks by their report, with Q-layers in "
        "autograd's graph, untouched as hooks count. by allocator: live bytes of the process, less what lives beside "
        "the untouched model's saved tensors. peak: of activations, with all gradients there before the step. times "
        "smaller: than the untouched model's, of what is kept by the larger of the two."
    )
    yield (
        "gradient's error: of one step's whole gradient, relative to the plain one's norm, with the same weights and "
        "draws, dropout off; not comparable: the losses differ, so that other anchors or boxes were drawn. The weights "
        "are random, so that it says little about training."
    )
    yield (
        "published: in percent, after training. Accuracy is not measured here: it needs COCO, Cityscapes, ImageNet and "
        f"days of a GPU. Source: {TRAINED_SOURCE}."
    )
    for cell in cells:
        if cell.outcome:
            yield f"{_dense_where(cell)}, {cell.way}: {cell.outcome}: {cell.failure or cell.does_not_apply}."


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
