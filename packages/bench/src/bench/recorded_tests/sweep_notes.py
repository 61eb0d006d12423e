"""Notes below the tables of the sweep: what the numbers are, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from bench.recorded_tests.sweep import ERROR, Swept, easing
from bench.results.record import Record
from bench.units import MIB
from integrations import LEVELS

MUCH = 0.25  # of what is stored

WHY: Mapping[str, str] = MappingProxyType(
    {
        "mobileone_s0": "Its untrained gradient is ill-conditioned: computed in float32 it is off by 0.005 from "
        "float64's (ResNet-18's by 0.0000015), and changing each weight by a millionth changes it by 6 %.",
        "fastvit_t8": "Convolutions of one weight a channel stand before a BatchNorm, which undoes their scale: what "
        "is left of their gradient is the small difference of large sums. Without these weights the error is 0.11.",
        "efficientvit_b0": "Its linear attention divides one part of a matrix product by another, which may be small. "
        "In the exact gradient the two parts cancel; with operands that were rounded they do not. With the operands of "
        "these products exact, the error is 0.15.",
        "vit": "Its error follows from the weights and the batch that are drawn: over eight seeds it is 0.08 to 0.26 "
        "on a CPU, and a GPU draws others.",
    }
)
"""What was found out about those that did not pass at L1."""


def notes(record: Record) -> Iterator[str]:
    """Paragraphs: what was done, then what is to be said of single subjects."""
    count, level, swept = record.settings["steps"], record.settings["level"], record.of(Swept)
    steps = f"{count} step{'s' * (count > 1)}"
    yield (
        f"One training step at {level} of each, with random weights and data: compress_model, forward and "
        "backward, report, an optimizer's step, restore_model. Saved and stored: what autograd alone keeps of the "
        "model's forward, before and after. Error: the distance of the gradient of all parameters together from that "
        "of the plain step, over the plain one's length; the root of the mean square over "
        f"{steps} from the same weights, batch and dropout masks, each with rounding noise of its own. BatchNorm "
        "trains."
    )
    yield (
        f"Passed: the error is at most {ERROR:g}, the loss is the plain one bit for bit, fewer bytes are stored or the "
        "report says why not, the optimizer changed every parameter that has a gradient, and restore_model brought the "
        "plain model back: classes, attributes, hooks, state_dict keys, and the plain gradient, bit for bit where two "
        "plain steps have the same."
    )
    if LEVELS[level].bits == 4:
        yield (
            "Four bits are off by 0.14 of a group's length where it holds 128 normal numbers, and by 0.15 where it "
            "holds 256, as groups of linear inputs did up to commit 4ecfcb27a: they span 5.1 and 5.6 standard "
            "deviations in 15 steps, and rounding at random is off by a step over the root of 6. A linear layer's "
            "gradient comes out there if its samples' gradients have random signs, as those of untrained transformers "
            "have; by less where they agree, by more where inputs agree and gradients cancel, or a group has outliers."
        )
    if any(entry.eased_errors for entry in swept):
        yield (
            f"Where {level} errs by more, the same was measured with {eased(record)}, and passes if that errs "
            "by no more; error, and times smaller, are in the last column."
        )
    for entry in swept:
        if entry.why and not entry.failure:
            yield f"No fewer bytes are stored of {entry.name}: {entry.why}."
    yield from _kept(swept)
    for entry in swept:
        if not entry.repeated and not entry.failure:
            yield (
                f"Two plain steps of {entry.name} have different gradients; after restore_model its gradient is off by "
                "at most 10 times as much."
            )
    for entry in swept:
        if not entry.passed:
            yield f"Did not pass: {entry.name}, {_shortcoming(entry)}. {WHY.get(entry.name, '')}".rstrip()
    commits = sorted({entry.commit for entry in swept if entry.commit})
    if len(commits) > 1:
        yield f"Measured with commits {', '.join(commits)}; the file says which number is of which."


def _shortcoming(entry: Swept) -> str:
    if entry.failure:
        return entry.failure
    if not entry.accurate and not entry.eased_error <= ERROR:
        return f"the gradient's error is {entry.error:.3f}, {entry.share:.0%} of its square in {entry.where}"
    return "its loss, its report, the optimizer's step or the restored model is not as it should be"


def _kept(swept: Sequence[Swept]) -> Iterator[str]:
    """What keeps much exactly, by reason."""
    found: dict[str, list[str]] = {}
    for entry in swept:
        if not entry.failure and entry.kept_bytes > MUCH * entry.stored_bytes:
            sizes = f"{entry.kept_bytes / MIB:.2f} of {entry.stored_bytes / MIB:.2f} MiB"
            found.setdefault(entry.kept, []).append(f"{entry.name} ({sizes})")
    for reason, names in found.items():
        yield f"Much of what is stored is there because of {reason}. {', '.join(names)}."


def eased(record: Record) -> str:
    """The options of ``easing``, in words."""
    return ", ".join(f"{name}={value}" for name, value in easing(record.settings["level"]).items())
