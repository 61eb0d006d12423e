"""What stands below the tables."""

from __future__ import annotations

from collections.abc import Iterator

from bench.results.record import Record
from bench.systems.ways import PLAIN
from bench.text import beside
from bench.text.published import FEWBIT, FEWBIT_PAPER, GACT, LENGTH
from bench.text.results import Cell, Facts, Run, difference, finished, trained
from bench.text.ways import CONTROL


def notes(record: Record) -> Iterator[str]:
    """Line by line."""
    for facts in record.of(Facts):
        yield f"{facts.task}: {facts.what}."
    if record.of(Run):
        yield (
            "difference: from plain runs of the same seeds, which share initial weights, order of the batches and "
            "dropout, with Student's 95 % interval; of the first metric, and of the held-out loss. times smaller: what "
            "plain autograd keeps of a batch over what is kept instead, as the report says. one answer for all: the "
            "most frequent label of the sentences that were trained on; its loss is that of their frequencies."
        )
        yield from _judged(record)
    if record.of(Cell):
        yield (
            "kept: of plain what autograd keeps, otherwise what the report says is kept instead. live: after the "
            "forward, less before. peak: the most during forward and backward, less before, with gradients that are "
            "there already; with gradients: the same where the step makes them, which no way makes smaller. time: "
            "forward and backward, in turn with plain ones. Weights are random in both."
        )
    if any(True for _ in beside.tables(record)):
        yield (
            f"Published: GACT, {GACT}; what it calls L1 for BERT there is 4 bits on average, which is our L2. FewBit, "
            f"{FEWBIT}, one run a row, its times of whole trainings; MNLI, {FEWBIT_PAPER}. Figures of GACT's accuracy "
            f"on GLUE were not found. Measured beside them: fine-tuned networks, and steps of {LENGTH} tokens."
        )


def _judged(record: Record) -> Iterator[str]:
    """Whether plain training learned anything, and whether losses tell the control from it."""
    for model, task in trained(record):
        plain, facts = finished(record, model, task, PLAIN), record.find(Facts, task=task)
        if not plain or facts is None:
            continue
        name = next(iter(facts.majority))
        found = sum(run.metrics[name] for run in plain) / len(plain)
        above = found - facts.majority[name]
        yield (
            f"{task}, {model}: plain training reaches {found:.1f} % {name}, {above:+.1f} points from one answer for all"
            + ("." if above > _LEARNED else ": too little for accuracies to tell ways apart; the losses may.")
        )
        control = difference(record, model, task, CONTROL, lambda run: run.held_out)
        if control is not None and control.low is not None and control.high is not None:
            apart = control.low > 0 or control.high < 0
            interval = f"{control.mean:+.3f} [{control.low:+.3f}, {control.high:+.3f}]"
            told = "tell" if apart else "do not tell"
            yield f"{task}, {model}: losses {told} runs whose gradients are zero from plain ones, {interval}" + (
                "." if apart else ": so they say nothing of the other ways."
            )


_LEARNED = 5.0  # points above one answer for all
