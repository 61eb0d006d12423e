"""What stands below the tables of ``python -m bench vision``, and what was asked of the numbers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from bench.results.record import Record
from bench.runner.memory import AGREEMENT, Memory
from bench.vision.compression import report as compression
from bench.vision.compression.results import Cell
from bench.vision.dense import report as dense
from bench.vision.dense.results import DenseCell
from bench.vision.published import ABLATION_SOURCE
from bench.vision.results import Ablated, Comparison, Noise, StepTimes, Variance, VisionCurve
from bench.vision.variance import WITH_GRADIENTS

RATIOS = {"L2": 6.0, "L3": 10.0}  # at least
POINTS, LOSS = 1.5, 0.03  # of accuracy, between which the interval lies; relative, at most
TRAINED = ("resnet20", "Q-layers L3")  # the model and the way that training is judged of
SEEDS = 10  # from which on training is judged
DATA = "CIFAR-10"  # on which networks are; the digits are too small to say anything
FACTOR = 2.0  # between predicted and measured, at most, either way
TIMES = {"L2": 1.3}  # at most


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
        yield from compression.lines(cells)
    if denses := record.of(DenseCell):
        yield from dense.lines(denses)
    if memories := record.of(Memory):
        yield (
            "memory: ResNet-50, batch 16 at 64 x 64, float32. graph: bytes that autograd keeps, without parameters, "
            "buffers and the batch. allocator: live bytes of the process after a forward, less what lives beside the "
            "untouched model's saved tensors, too. times smaller: what the untouched model saves over the larger of "
            "the two. peak: the most during forward and backward, less what was there before and the gradients."
        )
        yield from sorted({f"Not measured: {one.not_measured}." for one in memories if one.not_measured})
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
    yield from compression.targets(record.of(Cell))
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
