"""What stands below the tables of ``python -m bench checkpoint``: what the numbers are, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator

from bench.checkpoint.architectures import ARCHITECTURES
from bench.checkpoint.results import Peak, Planned, StepTimes
from bench.checkpoint.sizes import small
from bench.checkpoint.targets import AGREEMENT
from bench.results.record import Record
from bench.units import size_name


def notes(record: Record) -> Iterator[str]:
    """A paragraph a table, then what failed."""
    if plans := record.of(Planned):
        yield (
            "planned: what a plan says; no step is taken. inputs: samples, and their height and width or number of "
            "tokens. plain: the activation peak of the step that keeps everything; least: of the plan with the least. "
            "added time: of the quickest plan within that part of the plain peak, by the model of operators' times, as "
            "a part of a plain step's. capture, search: seconds on this machine, for all plans of a model together. "
            "paper's cut: what Feng and Huang's objective is, optimised, by its own accounting, in which every "
            "operator's result counts."
        )
        yield from sorted({f"{plan.model} was {plan.note}." for plan in plans if plan.note})
    if record.of(Peak):
        yield (
            "measured peak: the most memory during forward and backward, less what was there before and the gradients, "
            f"in a process of its own that may take {size_name(record.settings['memory_limit'])}. Where a step takes "
            "long, the one before it, which pays for caches, was of fewer samples. ours: plans of "
            "integrations.checkpoint, within that part of the planned plain peak. "
            "each block: torch.utils.checkpoint around each block. torch.compile: with that activation_memory_budget. "
            f"measured / planned: ✓ within {AGREEMENT:.0%}. cut: of the measured plain peak; ✓ at least what was "
            "published, by the README of OptimalGradCheckpointing, of a GPU's memory."
        )
        yield from _reduced(record)
    if times := record.of(StepTimes):
        rounds = max(len(time.seconds) for time in times)
        yield (
            "step: forward and backward at a size at which they take seconds. time: the median; over plain's: the "
            f"median over {rounds} rounds in turn of a step's time over the plain one's of the same round, and its "
            "range. differ by: the largest difference of any element of a gradient, or of a buffer, from those of a "
            "plain step with the same random numbers, as a part of the largest element of all."
        )
    yield from _failures(record)
    commits = sorted({entry.commit for entry in record.entries if entry.commit})
    if len(commits) > 1:
        yield f"Measured with commits {', '.join(commits)}; the file says which number is of which."


def _reduced(record: Record) -> Iterator[str]:
    """The models that were measured at fewer samples than their table has."""
    batches = {}
    for peak in record.of(Peak):
        architecture = ARCHITECTURES.get(peak.model)
        if architecture is None or peak.size != architecture.size or peak.peak_bytes is None:
            continue
        if peak.batch < architecture.batch and (peak.batch, peak.size) != small(architecture):
            batches[peak.model] = f"{peak.model} at {peak.batch} instead of {architecture.batch}"
    if batches:
        yield f"Not the table's own batch, which does not fit: {', '.join(batches.values())}."


def _failures(record: Record) -> Iterator[str]:
    for plan in record.of(Planned):
        if plan.failure:
            yield f"Not planned: {plan.model}, {plan.batch} at {plan.size}: {plan.failure}"
    for peak in record.of(Peak):
        if peak.failure:
            yield f"Not measured: peak of {_said(peak)}: {peak.failure}"
    for time in record.of(StepTimes):
        if time.failure:
            yield f"Not measured: time of {_said(time)}: {time.failure}"


def _said(entry: Peak | StepTimes) -> str:
    return f"{entry.model}, {entry.way}, {entry.batch} at {entry.size}"
