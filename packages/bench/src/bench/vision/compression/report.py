"""The tables of the part ``compression``: what is kept, and the peaks, each beside what was published."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bench.results.tables import columns, dim, marked, mib
from bench.vision.compression.results import Cell
from bench.vision.compression.targets import KEPT, PEAK, PEAKED, judged, kept_enough, peaked_enough
from bench.vision.compression.ways import PLAIN
from bench.vision.models import MODELS
from bench.vision.published import COMPRESSED, Compressed

_INDENT = "  "


def tables(cells: Sequence[Cell]) -> Iterator[Table]:
    """What is kept and the peaks, by model and inputs."""
    yield _with_models(
        cells,
        columns(
            "compression",
            "kept before\nMiB",
            "after\nby report",
            "\nby allocator",
            "times smaller\nmeasured",
            "\npublished",
        ),
        _kept,
    )
    yield _with_models(
        cells,
        columns(
            "peak",
            "\nMiB",
            "gradients\nthere",
            "times\nsmaller",
            "gradients\nthere",
            "\npublished",
            "reached in",
        ),
        _peaks,
    )


def lines(cells: Sequence[Cell]) -> Iterator[str]:
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
    sources = dict.fromkeys(one.source for one in _published_of(cells))
    if sources:
        yield f"published: {'; '.join(map(_said, _published_of(cells)))}. Sources: {'; '.join(sources)}."


def targets(cells: Sequence[Cell]) -> Iterator[str]:
    """What is asked, if it is asked of one of the cells."""
    if any(judged(cell) for cell in cells):
        kept = ", ".join(f"{way} {least:g}" for way, least in KEPT.items())
        yield f"ResNet-50 keeps at least so many times less: {kept}"
        yield f"its peaks with {' and '.join(PEAKED)} more than {PEAK:g} times smaller, both ways of counting"


def where(cell: Cell) -> str:
    """The model and its inputs in words."""
    order = ", channels last" if cell.channels_last else ""
    return f"{MODELS[cell.model].title}, {cell.batch} at {cell.size}{order}"


def _with_models(
    cells: Sequence[Cell], table: Table, row: Callable[[Cell, Cell | None], list[RenderableType]]
) -> Table:
    """A table with a heading for each model and its inputs."""
    for _, found in groupby(cells, key=lambda cell: cell.inputs):
        some = list(found)
        table.add_row(Text(where(some[0]), style="bold"))
        plain = next((cell for cell in some if cell.way == PLAIN), None)
        for cell in some:
            table.add_row(_INDENT + cell.way, *row(cell, plain))
    return table


def _kept(cell: Cell, plain: Cell | None) -> list[RenderableType]:
    if cell.outcome:
        return [dim(cell.outcome)]
    before = mib(cell.original_bytes)
    if plain is None or cell is plain:
        return [before]
    ratio = cell.ratio(plain)
    return [
        before or mib(plain.original_bytes),
        mib(cell.stored_bytes),
        mib(cell.allocated_bytes(plain)),
        "" if ratio is None else marked(f"{ratio:.1f}", kept_enough(cell, plain)),
        ", ".join(f"{one.ratio:.1f}" for one in _published(cell)),
    ]


def _peaks(cell: Cell, plain: Cell | None) -> list[RenderableType]:
    if cell.outcome:
        return [dim(cell.outcome)]
    found: list[RenderableType] = [mib(cell.peak_bytes), mib(cell.standing_peak_bytes)]
    ratios = None if plain is None or cell is plain else cell.peak_ratios(plain)
    if ratios is None:
        return [*found, "", "", "", _moment(cell)]
    marks = [marked(f"{ratio:.2f}", peaked_enough(cell, ratio)) for ratio in ratios]
    published = ", ".join(f"{one.peak_ratio:.1f}" for one in _published(cell) if one.peak_ratio is not None)
    return [*found, *marks, published, _moment(cell)]


def _moment(cell: Cell) -> str:
    return cell.peak_in.removeprefix("backward: ").replace("aten::", "")


def _published(cell: Cell) -> list[Compressed]:
    return [one for one in COMPRESSED if (one.model, one.way) == (cell.model, cell.way)]


def _published_of(cells: Sequence[Cell]) -> list[Compressed]:
    return [one for one in COMPRESSED if any(one in _published(cell) for cell in cells)]


def _said(one: Compressed) -> str:
    if one.unit == "times":
        return f"{one.way}: {one.kept[0]:g} times less"
    peak = "" if one.peak is None else f", peak {one.peak[0]:g} to {one.peak[1]:g}"
    return f"{one.way} ({one.bits} bits, batch {one.batch}): {one.kept[0]:g} to {one.kept[1]:g} {one.unit}{peak}"
