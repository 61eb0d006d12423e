"""The table of the part ``dense``: bytes and the gradient's error, beside the accuracy that was published."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.table import Table
from rich.text import Text

from bench.results.tables import mib, number, table
from bench.vision.compression.ways import PLAIN
from bench.vision.dense.models import DENSE
from bench.vision.dense.results import DenseCell
from bench.vision.published import TRAINED, TRAINED_SOURCE


def table_of(cells: Sequence[DenseCell]) -> Table:
    """A heading for each model and its inputs, with what was published of it, and a row for each way."""
    made = table(
        (),
        ("dense", str),
        *((heading, str) for heading in ("kept\nMiB", "by allocator\nMiB", "times\nsmaller", "peak\nMiB")),
        *((heading, str) for heading in ("times\nsmaller", "gradient's\nerror")),
        *((heading, str) for heading in ("published:\nofficial", "published:\nActNN")),
    )
    for _, found in groupby(cells, key=lambda cell: cell.inputs):
        some = list(found)
        published = TRAINED[some[0].model]
        heading = Text(f"{_where(some[0])} ({published.metric})", style="bold")
        made.add_row(heading, *[""] * 6, f"{published.official:.1f}", f"{published.compressed:.1f}")
        plain = next((cell for cell in some if cell.way == PLAIN), None)
        for cell in some:
            made.add_row(f"  {cell.way}", *_numbers(cell, plain))
    return made


def lines(cells: Sequence[DenseCell]) -> Iterator[str]:
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
            yield f"{_where(cell)}, {cell.way}: {cell.outcome}: {cell.failure or cell.does_not_apply}."


def _where(cell: DenseCell) -> str:
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
