"""The tables and the chart of ``python -m bench vision``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import fmean, median
from types import MappingProxyType

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bench.errors import BenchError
from bench.models.dense import DENSE
from bench.models.image_models import MODELS, SIZE
from bench.results.charts import BLUE, GREY, INK, VERMILION, footer, lined, titled
from bench.results.record import Record
from bench.results.report import Report, notes_of_missing
from bench.results.tables import Column, bounded, columns, dim, interval, marked, mean, mib, milliseconds, number, table
from bench.runner.memory import AGREEMENT, Memory
from bench.suites.vision.entries import (
    FACTOR,
    FULL,
    Ablated,
    Cell,
    Comparison,
    DenseCell,
    Noise,
    StepTimes,
    Variance,
    VisionCurve,
    comparisons,
)
from bench.suites.vision.variance import WITH_GRADIENTS
from bench.ways.conversions import PLAIN

_GACT = "GACT's repository, data of its figures (commit c469538), on a GPU"

_USER = "a user's reproduction, GACT-ICML issue 2"

_ACTNN = "ActNN's README and abstract (arXiv 2104.14129), 2 bits on average"

ABLATION_SOURCE = "ActNN's development README (GACT-ICML, commit cfd3bd5), PreAct-ResNet-56 in 2 bits"

ABLATION: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "per tensor": (0.297, 0.909),
        "per group": (0.0314, 0.151),
        "+ per sample": (0.0335, 0.151),
        "+ per layer": (0.0198, 0.0763),
        "+ per layer, use_gradient": (0.00262, 0.0329),
    }
)
"""The gradient's variance, in absolute terms, on CIFAR-10 and CIFAR-100, by the steps of the ablation."""

TRAINED_SOURCE = "ActNN's README (arXiv 2104.14129), 2 bits on average"

MODEL = "resnet50"

KEPT: Mapping[str, float] = MappingProxyType({"L1": 4.8, "L2": 6.7, "L2.2": 11.3, "Q-layers L3": 12.0})
"""Times fewer bytes at least, by way: GACT's figures at 4 and 2 bits on average, ActNN's; L1 has norms in 8 bits."""

PEAK = 4.4
"""Times smaller the peak, which was GACT's while what it kept became 11.3 times smaller."""

PEAKED = ("L2.2", "Q-layers L3")  # of 2 bits on average, as that was


@dataclass(frozen=True)
class Compressed:
    """Memory of a model, compressed and not.

    Attributes:
        model, way: the names that this bench has for them.
        bits: as the source has it.
        batch: images of 224 x 224; 0 where the source does not say.
        kept: activation memory before and after, in ``unit``; only their ratio in some sources, which then is before.
        peak: the same of the peak; ``None`` where it is not said.
        unit: of ``kept`` and ``peak``.
        source: where it is from.
    """

    model: str
    way: str
    bits: str
    batch: int
    kept: tuple[float, float]
    peak: tuple[float, float] | None
    unit: str
    source: str

    @property
    def ratio(self) -> float:
        """How many times less is kept."""
        return self.kept[0] / self.kept[1]

    @property
    def peak_ratio(self) -> float | None:
        """How many times smaller the peak is."""
        return None if self.peak is None else self.peak[0] / self.peak[1]


COMPRESSED = (
    Compressed("resnet50", "L1.1", "8", 128, (10.94, 2.98), None, "GB", _GACT),
    Compressed("resnet50", "L2", "4", 128, (10.94, 1.64), (11.05, 2.84), "GB", _GACT),
    Compressed("resnet50", "L2.2", "2", 128, (10.94, 0.97), (11.05, 2.52), "GB", _GACT),
    Compressed("resnet50", "L2.2", "2", 64, (5208.7, 650.6), (5641, 3446), "MB", _USER),
    Compressed("resnet50", "Q-layers L3", "2", 0, (12, 1), None, "times", _ACTNN),
)


@dataclass(frozen=True)
class Trained:
    """What a model reached after training, in percent.

    Attributes:
        metric: what is counted, and on which data.
        official: trained as usual.
        compressed: trained with ActNN.
    """

    metric: str
    official: float
    compressed: float


PUBLISHED_TRAINED: Mapping[str, Trained] = MappingProxyType(
    {
        "fasterrcnn_resnet50_fpn": Trained("mAP, COCO", 37.4, 37.4),
        "retinanet_resnet50_fpn": Trained("mAP, COCO", 36.5, 36.3),
        "fcn_resnet50": Trained("mIoU, Cityscapes", 73.6, 72.9),
        "fpn_resnet50": Trained("mIoU, Cityscapes", 74.5, 74.7),
        "moco_v2_resnet50": Trained("top-1, ImageNet", 67.7, 67.3),
    }
)
"""By the names that ``bench.suites.vision.dense`` has for the models."""


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
    if any(compression_judged(cell) for cell in cells):
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
        published = PUBLISHED_TRAINED[some[0].model]
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


_BAND = "#D6E8F4"


def draw(record: Record) -> Figure:
    """A column for each level of the part ``variance``.

    Raises:
        BenchError: that part was not run.
    """
    variances = record.measured(Variance)
    if not variances:
        raise BenchError("a chart shows the part variance; run it with --part variance")
    figure, rows = plt.subplots(
        2, len(variances), figsize=(11, 6.4), sharex=True, sharey="row", squeeze=False, height_ratios=(3, 1)
    )
    for place, variance in enumerate(variances):
        _draw_variance(rows[0, place], variance)
        _draw_bits(rows[1, place], variance)
    rows[0, 0].set_ylabel("variance / squared gradient")
    rows[1, 0].set_ylabel("bits")
    rows[0, 0].legend(frameon=False, loc="upper right", fontsize=9)
    first, data, recipe = variances[0], record.settings["data"], record.settings["recipe"]
    text = (
        f"ResNet-20 on the {data.partition(' (')[0]} after {recipe['steps before variances']:g} steps, "
        f"batch {recipe['batch of variances']:g}, {first.repeats} repeats; bars: a factor of {FACTOR:g} around "
        "what was measured."
    )
    footer(figure, text, record.machine)
    figure.subplots_adjust(left=0.07, right=0.985, top=0.93, bottom=0.24, wspace=0.06, hspace=0.08)
    return figure


def _draw_variance(axes: Axes, variance: Variance) -> None:
    layers = [layer for layer in variance.layers if layer.gradient and layer.measured]
    places = list(range(len(layers)))
    measured = [layer.measured / layer.gradient for layer in layers]
    axes.vlines(places, [one / FACTOR for one in measured], [one * FACTOR for one in measured], _BAND, linewidth=7)
    predicted = [layer.predicted / layer.gradient for layer in layers]
    axes.plot(places, measured, "x", color=VERMILION, markersize=5, label="measured")
    axes.plot(places, predicted, "o", color=BLUE, markersize=4.5, markeredgecolor="white", label="predicted")
    axes.set_yscale("log")
    titled(axes, f"{variance.name}: {variance.share:.3g} of the whole gradient's square")
    lined(axes, "y")
    axes.tick_params(axis="x", length=0)


def _draw_bits(axes: Axes, variance: Variance) -> None:
    layers = [layer for layer in variance.layers if layer.gradient and layer.measured]
    axes.bar(range(len(layers)), [layer.bits for layer in layers], color=GREY, width=0.7)
    axes.set_xticks(range(len(layers)), [layer.name for layer in layers], rotation=90, fontsize=6.5, color=INK)
    axes.set_xlim(-1, len(layers))
    lined(axes, "y")


RATIOS = {"L2": 6.0, "L3": 10.0}  # at least

POINTS, LOSS = 1.5, 0.03  # of accuracy, between which the interval lies; relative, at most

TRAINED = ("resnet20", "Q-layers L3")  # the model and the way that training is judged of

SEEDS = 10  # from which on training is judged

DATA = "CIFAR-10"  # on which networks are; the digits are too small to say anything

TIMES = {"L2": 1.3}  # at most


def tables(record: Record) -> Iterator[Table]:
    """One for each part that was run."""
    if cells := record.of(Cell):
        yield from compression_tables(cells)
    if denses := record.of(DenseCell):
        yield dense_table(denses)
    if memories := record.measured(Memory):
        yield _memories(memories)
    if record.of(VisionCurve):
        yield _training(record)
    if variances := record.measured(Variance):
        yield _variances(record, variances)
    if record.of(Ablated):
        yield _ablation(record)
    if times := record.measured(StepTimes):
        yield _times(record, times)


def times_smaller(memory: Memory, plain: Memory) -> float | None:
    """How many times fewer bytes are kept, by the larger of what graph and allocator say; ``None``: unknown."""
    if not memory.stored_bytes or plain.original_bytes is None:
        return None
    return plain.original_bytes / (memory.stored_bytes * max(1.0, memory.agreement(plain) or 1.0))


def _memories(memories: Sequence[Memory]) -> Table:
    plain = memories[0]

    def is_plain(memory: Memory) -> bool:
        return memory.stored_bytes is None

    def allocated(memory: Memory) -> str:
        agreement = memory.agreement(plain)
        if memory.stored_bytes is None:
            return mib(memory.live_bytes, 2)
        return "" if agreement is None else mib(agreement * memory.stored_bytes, 2)

    def agreement(memory: Memory) -> RenderableType:
        found = None if is_plain(memory) else memory.agreement(plain)
        return "" if found is None else marked(f"{found:.3f}", abs(found - 1) <= AGREEMENT)

    def smaller(memory: Memory) -> RenderableType:
        return bounded(times_smaller(memory, plain), ".1f", least=RATIOS.get(memory.level))

    return table(
        memories,
        ("memory", lambda memory: "torch's layers" if is_plain(memory) else memory.level),
        ("graph\nMiB", lambda memory: mib(memory.original_bytes if is_plain(memory) else memory.stored_bytes, 2)),
        ("allocator\nMiB", allocated),
        ("allocator /\ngraph", agreement),
        ("times\nsmaller", smaller),
        ("peak\nMiB", lambda memory: mib(memory.peak_bytes)),
    )


def _training(record: Record) -> Table:
    def difference(row: Comparison) -> RenderableType:
        reached = row.difference.meets(POINTS) if enough(record, row) else None
        return "" if row.level == FULL else marked(interval(row.difference, 2), reached)

    def loss(row: Comparison) -> RenderableType:
        reached = abs(row.loss_ratio - 1) <= LOSS if enough(record, row) else None
        return "" if row.level == FULL else marked(f"{row.loss_ratio:.3f}", reached)

    return table(
        comparisons(record),
        ("training", lambda row: "  full precision" if row.level == FULL else f"  {row.level}"),
        ("seeds", lambda row: str(len(row.accuracies))),
        ("accuracy, %", lambda row: mean(row.accuracies, 1)),
        ("difference, points", difference),
        ("final loss", lambda row: f"{fmean(row.losses):.3f}"),
        ("\nrelative", loss),
        ("images/s", lambda row: number(row.images_per_second, ",.1f")),
        ("\nrelative", lambda row: "" if row.level == FULL else number(row.speed, ".2f")),
        above=lambda row: row.model,
    )


def _bias(noise: Noise) -> str:
    return f"{noise.bias / noise.gradient:.2g}"


def _variances(record: Record, variances: Sequence[Variance]) -> Table:
    def within(variance: Variance) -> RenderableType:
        held, count = inside(variance), len(variance.ratios)
        return marked(f"{held} of {count}", held == count if judged(record) else None)

    return table(
        variances,
        ("variance", lambda variance: variance.name),
        ("layers", lambda variance: str(len(variance.ratios))),
        ("share", lambda variance: f"{variance.share:.3g}"),
        ("bias", _bias),
        ("predicted /\nmeasured, least", lambda variance: f"{min(variance.ratios):.2f}"),
        ("\nmedian", lambda variance: f"{median(variance.ratios):.2f}"),
        ("\nmost", lambda variance: f"{max(variance.ratios):.2f}"),
        ("within\nthe factor", within),
    )


def _ablation(record: Record) -> Table:
    rows = list(zip(record.of(Ablated), below(record), strict=True))

    def published(place: int) -> Column[tuple[Ablated, bool | None]]:
        def figure(row: tuple[Ablated, bool | None]) -> str:
            figures = ABLATION.get(row[0].name, ())
            return f"{figures[place]:g}" if figures else ""

        return ("published:\nCIFAR-10", "\nCIFAR-100")[place], figure

    return table(
        rows,
        ("ablation, 2 bits", lambda row: row[0].name),
        ("share", lambda row: marked(f"{row[0].share:.3g}", row[1])),
        ("bias", lambda row: _bias(row[0])),
        published(0),
        published(1),
    )


def _times(record: Record, found: Sequence[StepTimes]) -> Table:
    def column(level: str) -> Column[StepTimes]:
        def cell(times: StepTimes) -> RenderableType:
            return bounded(times.ratio(level), ".2f", most=TIMES.get(level) if judged(record) else None)

        return level, cell

    return table(
        found,
        ("time", lambda times: times.order),
        ("torch's\nlayers, ms", lambda times: milliseconds(times.plain_seconds, 0)),
        *map(column, found[0].seconds),
    )


def judged(record: Record) -> bool:
    """Whether the images are those that something was asked of."""
    return str(record.settings.get("data", "")).startswith(DATA)


def enough(record: Record, comparison: Comparison) -> bool:
    """Whether a level's training is judged."""
    asked = (comparison.model, comparison.level) == TRAINED
    return judged(record) and asked and len(comparison.accuracies) >= SEEDS


def inside(variance: Noise) -> int:
    """Of how many layers the prediction is within ``FACTOR``."""
    return sum(1 / FACTOR <= ratio <= FACTOR for ratio in variance.ratios)


def below(record: Record) -> list[bool | None]:
    """Of each step of the ablation, whether it has less variance than the one before; ``None``: nothing is asked."""
    steps = record.of(Ablated)
    asked = [judged(record) and step.name != WITH_GRADIENTS for step in steps[1:]]
    pairs = zip(asked, pairwise(steps), strict=True)
    return [None, *(later.share < earlier.share if one else None for one, (earlier, later) in pairs)]


def notes(record: Record) -> Iterator[str]:
    """A paragraph a part that was run."""
    settings = record.settings
    if settings.get("data"):
        yield f"Data: {settings['data']}."
    if settings.get("recipe"):
        yield f"Recipe: {', '.join(f'{name} {value:g}' for name, value in settings['recipe'].items())}."
    if settings["device"] != "cpu":
        yield (
            f"{record.machine.processor} is what compression and training on a folder are of; all else is of the CPU."
        )
    if cells := record.of(Cell):
        yield from compression_notes(cells)
    if denses := record.of(DenseCell):
        yield from dense_notes(denses)
    if memories := record.of(Memory):
        yield (
            "memory: ResNet-50, batch 16 at 64 x 64, float32. graph: bytes that autograd keeps, without parameters, "
            "buffers and the batch. allocator: live bytes of the process after a forward, less what lives beside the "
            "untouched model's saved tensors, too. times smaller: what the untouched model saves over the larger of "
            "the two. peak: the most during forward and backward, less what was there before and the gradients."
        )
        yield from notes_of_missing(memories)
        yield from sorted({f"memory failed: {one.failure}." for one in memories if one.failure})
    if curves := record.of(VisionCurve):
        yield (
            "training: runs of a seed share initial weights and batches. accuracy: of the test images after the last "
            "epoch, top-1, mean and standard deviation; difference: from full precision with the same seed, with "
            "Student's 95 % interval. final loss: training loss of the last epoch, over full precision's with the same "
            "seed, the mean. images/s: of training without the test, and over full precision's."
        )
        for curve in curves:
            if curve.failure:
                yield f"{curve.model}, {curve.level}, seed {curve.seed}: failed: {curve.failure}."
    some: list[Noise] = [*record.of(Variance), *record.of(Ablated)]
    if some:
        yield (
            f"variance: of the gradient of one batch, {some[0].repeats} repeats, of a ResNet-20 that was trained "
            "a little. share: of the whole gradient's squared norm; bias: the same, of its mean's squared distance "
            "from the exact gradient. predicted / measured: of each layer by itself."
        )
    if record.of(Ablated):
        yield f"published: the gradient's variance, which is no share of anything: {ABLATION_SOURCE}."
    if any(step.name == WITH_GRADIENTS for step in record.of(Ablated)):
        yield f"{WITH_GRADIENTS}: the table has seen these very samples twice."
    if times := record.of(StepTimes):
        first = times[0]
        yield (
            f"time: forward and backward of ResNet-20, no optimizer, batch {first.batch}, over torch's own layers, in "
            f"turn; median of the ratios of {len(first.plain_seconds)} rounds."
        )


def targets(record: Record) -> Iterator[str]:
    """What was asked of the parts that were run."""
    yield from compression_targets(record.of(Cell))
    if record.of(Memory):
        ratios = ", ".join(f"{level} {least:g}" for level, least in RATIOS.items())
        yield f"times smaller at least {ratios}; the allocator's bytes those of the graph within {AGREEMENT:.0%}"
    if not judged(record):
        return
    if record.of(VisionCurve):
        yield (
            f"the interval lies within ±{POINTS:g} points, ? (undecided) if only a part of it does; final loss within "
            f"{LOSS:.0%} (judged from {SEEDS} seeds on)"
        )
    if record.of(Variance):
        yield f"predicted within a factor of {FACTOR:g} of measured, every layer"
    if record.of(Ablated):
        yield "each of ActNN's steps below the one before"
    if record.of(StepTimes):
        yield f"step time at most {', '.join(f'{level} {most:g}' for level, most in TIMES.items())}"


REPORT = Report("Networks for images", tables, notes, targets, draw=draw)
