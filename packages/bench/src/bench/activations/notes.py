"""What stands below the tables of ``python -m bench activations``."""

from __future__ import annotations

from collections.abc import Iterator

from bench.activations.results import Adaptation, InitialError, LevelResult, Overhead
from bench.results.record import Record
from bench.runner.memory import AGREEMENT, Memory
from bench.runner.run import said

# At least, by level, of ResNet-18, ViT-tiny and BERT.
RATIOS = {"L1": 5.0, "L2": 7.0, "L2.2": 12.0}
NO_RATIO = ("gcn", "resnet50", "llama")
ERRORS = {"L1": 0.15, "L1.1": 0.05}  # at most
TIMES = {
    ("resnet18", "L1"): 1.08,
    ("resnet50", "L1"): 1.08,
    ("vit_tiny", "L1"): 1.12,
    ("bert", "L1"): 1.12,
    ("llama", "L1"): 1.05,
    ("gcn", "L1"): 1.2,
}  # at most
MICROSECONDS, ALONE = 15.0, 8.0  # at most: a packed tensor beyond its codec, one that is left alone
HELD = (
    "resnet18",
    "resnet50",
    "vit_tiny",
    "bert",
    "llama",
)  # a graph network's tensors are as small as the objects that hold them


def notes(record: Record) -> Iterator[str]:
    """A paragraph a part that was run."""
    levels = [entry for entry in record.of(LevelResult) if not entry.failure]
    yield from (f"{model}: {what}." for model, what in {entry.model: entry.what for entry in levels}.items())
    yield from (f"{said(entry)}: {entry.reason}." for entry in record.entries if entry.failure)
    if levels:
        level = levels[0]  # as many steps and rounds as all others
        yield (
            "saved: what autograd alone keeps of the model's forward. gradient's error: of the whole gradient at "
            "initialisation, relative to full precision with the same dropout; mean of "
            f"{len(level.errors)} steps, each with other noise. step time: forward and backward, no optimizer, over "
            f"plain, in turn; median of the ratios of {len(level.seconds)} rounds. Adaptive levels after two steps, "
            "with their plan."
        )
    if record.of(Overhead):
        yield (
            "overhead: all that compression adds to forward and backward of tiny layers, a step's fixed part included: "
            "over the saved tensors, in the chain whose layers save nothing but buffers, which are left alone; in the "
            "others less that for each weight, over the packed tensors, less the codec, which is the time to compress "
            "and decompress one such tensor in 4 bits with nothing around it."
        )
    if memories := record.of(Memory):
        yield (
            "measured: live bytes of the process after a forward; at a level without what lives beside the untouched "
            "model's saved tensors, too, its result and the graph. peak: the most during forward and backward, less "
            "what was there before and the gradients."
        )
        yield from sorted({f"Not measured: {one.not_measured}." for one in memories if one.not_measured})
    if adaptations := record.of(Adaptation):
        yield (
            "adaptation: an ordinary step, with a plan, and one that is measured and makes the next plan, in turn; "
            f"median of the ratios of {len(adaptations[0].seconds)} rounds."
        )
    if initial := record.of(InitialError):
        first = initial[0]
        yield (
            f"initial: models as timm makes them, {first.what}; error of the whole gradient, mean of "
            f"{len(first.errors)} steps, each with other noise."
        )


def targets(record: Record) -> Iterator[str]:
    """What was asked of the parts that were run."""
    if record.of(LevelResult):
        ratios = ", ".join(f"{level} {least:g}" for level, least in RATIOS.items())
        times = ", ".join(f"{model} at {level} {most:g}" for (model, level), most in TIMES.items())
        yield f"times smaller at least {ratios} (not {', '.join(NO_RATIO)}); step time at most {times}"
    if bool(record.of(LevelResult)) or bool(record.of(InitialError)):
        yield f"error at most {', '.join(f'{level} {most:g}' for level, most in ERRORS.items())}"
    if record.of(Overhead):
        yield f"{MICROSECONDS:g} µs a packed tensor beyond its codec, {ALONE:g} µs one that is left alone"
    if record.of(Memory):
        yield f"measured bytes those of the report within {AGREEMENT:.0%} ({', '.join(HELD)})"
