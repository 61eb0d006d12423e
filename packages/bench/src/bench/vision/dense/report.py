"""The table of the part ``dense``: bytes and the gradient's error, beside the accuracy that was published."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.table import Table
from rich.text import Text

from bench.layout import columns
from bench.units import MIB
from bench.vision.compression.ways import PLAIN
from bench.vision.dense.models import DENSE
from bench.vision.dense.results import DenseCell
from bench.vision.published import TRAINED, TRAINED_SOURCE

_HEADINGS = (
    "kept\nMiB",
    "by allocator\nMiB",
    "times\nsmaller",
    "peak\nMiB",
    "times\nsmaller",
    "gradient's\nerror",
    "published:\nofficial",
    "published:\nActNN",
)


def table(cells: Sequence[DenseCell]) -> Table:
    """A heading for each model and its inputs, with what was published of it, and a row for each way."""
    made = columns("dense", *_HEADINGS)
    for _, found in groupby(cells, key=lambda cell: cell.inputs):
        some = list(found)
        published = TRAINED[some[0].model]
        made.add_row(
            Text(f"{_where(some[0])} ({published.metric})", style="bold"),
            *[""] * 6,
            f"{published.official:.1f}",
            f"{published.compressed:.1f}",
        )
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
        if cell.failure or cell.does_not_apply:
            why = f"failed: {cell.failure}" if cell.failure else f"does not apply: {cell.does_not_apply}"
            yield f"{_where(cell)}, {cell.way}: {why}."


def _where(cell: DenseCell) -> str:
    return f"{DENSE[cell.model].title}, {cell.batch} at {cell.size}"


def _numbers(cell: DenseCell, plain: DenseCell | None) -> list[str]:
    if cell.failure or cell.does_not_apply:
        return ["failed" if cell.failure else "does not apply"]
    if plain is None or cell is plain:
        return [_mib(cell.original_bytes), "", "", _mib(cell.standing_peak_bytes)]
    ratio, peaks = cell.ratio(plain), cell.peak_ratios(plain)
    error = "" if cell.losses is None else "not comparable"
    return [
        _mib(cell.stored_bytes),
        _mib(cell.allocated_bytes(plain)),
        "" if ratio is None else f"{ratio:.1f}",
        _mib(cell.standing_peak_bytes),
        "" if peaks is None else f"{peaks[1]:.2f}",
        error if cell.gradient_error is None else f"{cell.gradient_error:.3g}",
    ]


def _mib(count: int | None) -> str:
    return "" if count is None else f"{count / MIB:,.1f}"
