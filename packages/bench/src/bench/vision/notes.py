"""What stands below the tables of ``python -m bench vision``: what the numbers are, and what was asked of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from rich.text import Text

from bench.memory import AGREEMENT
from bench.vision.compression import report as compression
from bench.vision.dense import report as dense
from bench.vision.published import ABLATION_SOURCE
from bench.vision.results import Comparison, Variance, VisionResults
from bench.vision.variance import WITH_GRADIENTS

RATIOS = {"L2": 6.0, "L3": 10.0}  # at least
POINTS, LOSS = 1.5, 0.03  # of accuracy, which the interval overlaps; relative, at most
TRAINED = ("resnet20", "Q-layers L3")  # the model and the way that training is judged of
SEEDS = 10  # from which on training is judged
DATA = "CIFAR-10"  # on which networks are; the digits are too small to say anything
FACTOR = 2.0  # between predicted and measured, at most, either way
TIMES = {"L2": 1.3}  # at most


def judged(results: VisionResults) -> bool:
    """Whether the images are those that something was asked of."""
    return results.data.startswith(DATA)


def enough(results: VisionResults, comparison: Comparison) -> bool:
    """Whether a level's training is judged."""
    asked = (comparison.model, comparison.level) == TRAINED
    return judged(results) and asked and len(comparison.accuracies) >= SEEDS


def inside(variance: Variance) -> int:
    """Of how many layers the prediction is within ``FACTOR``."""
    return sum(1 / FACTOR <= ratio <= FACTOR for ratio in variance.ratios)


def below(results: VisionResults) -> list[bool | None]:
    """Of each step of the ablation, whether it has less variance than the one before; ``None``: nothing is asked."""
    steps = results.ablation
    asked = [judged(results) and step.name != WITH_GRADIENTS for step in steps[1:]]
    pairs = zip(asked, pairwise(steps), strict=True)
    return [None, *(later.share < earlier.share if one else None for one, (earlier, later) in pairs)]


def notes(results: VisionResults) -> Text:
    """A paragraph a part that was run, and what was asked of it."""
    lines = list(_lines(results))
    if targets := "; ".join(_targets(results)):
        lines.append(f"✓ reached, ✗ not: {targets}.")
    return Text("\n".join(lines), style="dim")


def _lines(results: VisionResults) -> Iterator[str]:
    if results.data:
        yield f"Data: {results.data}."
    if results.recipe:
        yield f"Recipe: {', '.join(f'{name} {value:g}' for name, value in results.recipe.items())}."
    if results.device != "cpu":
        yield (
            f"{results.machine.processor} is what compression and training on a folder are of; all else is of the CPU."
        )
    for reason in results.skipped:
        yield f"Left out: {reason}."
    if results.compressions:
        yield from compression.lines(results.compressions)
    if results.dense:
        yield from dense.lines(results.dense)
    if results.memories:
        yield (
            "memory: ResNet-50, batch 16 at 64 x 64, float32. graph: bytes that autograd keeps, without parameters, "
            "buffers and the batch. allocator: live bytes of the process after a forward, less what lives beside the "
            "untouched model's saved tensors, too. times smaller: what the untouched model saves over the larger of "
            "the two. peak: the most during forward and backward, less what was there before and the gradients."
        )
        yield from sorted({f"Not measured: {one.not_measured}." for one in results.memories if one.not_measured})
    if results.curves:
        yield (
            "training: runs of a seed share initial weights and batches. accuracy: of the test images after the last "
            "epoch, top-1, mean and standard deviation; difference: from full precision with the same seed, with "
            "Student's 95 % interval. final loss: training loss of the last epoch, over full precision's with the same "
            "seed, the mean. images/s: of training without the test, and over full precision's."
        )
        for curve in results.curves:
            if curve.failure:
                yield f"{curve.model}, {curve.level}, seed {curve.seed}: failed: {curve.failure}."
    if some := (results.variances or results.ablation):
        yield (
            f"variance: of the gradient of one batch, {some[0].found.repeats} repeats, of a ResNet-20 that was trained "
            "a little. share: of the whole gradient's squared norm; bias: the same, of its mean's squared distance "
            "from the exact gradient. predicted / measured: of each layer by itself."
        )
    if results.ablation:
        yield f"published: the gradient's variance, which is no share of anything: {ABLATION_SOURCE}."
    if any(step.name == WITH_GRADIENTS for step in results.ablation):
        yield f"{WITH_GRADIENTS}: the table has seen these very samples twice."
    if results.times:
        first = results.times[0]
        yield (
            f"time: forward and backward of ResNet-20, no optimizer, batch {first.batch}, over torch's own layers, in "
            f"turn; median of the ratios of {len(first.plain_seconds)} rounds."
        )


def _targets(results: VisionResults) -> Iterator[str]:
    yield from compression.targets(results.compressions)
    if results.memories:
        ratios = ", ".join(f"{level} {least:g}" for level, least in RATIOS.items())
        yield f"times smaller at least {ratios}; the allocator's bytes those of the graph within {AGREEMENT:.0%}"
    if not judged(results):
        return
    if results.curves:
        yield f"the interval overlaps ±{POINTS:g} points, final loss within {LOSS:.0%} (judged from {SEEDS} seeds on)"
    if results.variances:
        yield f"predicted within a factor of {FACTOR:g} of measured, every layer"
    if results.ablation:
        yield "each of ActNN's steps below the one before"
    if results.times:
        yield f"step time at most {', '.join(f'{level} {most:g}' for level, most in TIMES.items())}"
