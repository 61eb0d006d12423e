"""From raw results to the rows of the table, and whether each number reaches what was set out to be reached.

Targets are printed, never asserted: a slow machine or an unlucky seed is no defect.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from bench.results.record import Record, match_seeds, paired
from bench.results.statistics import Difference, Reached, spread
from bench.runner.memory import AGREEMENT, Memory
from bench.suites.gnn.results import REFERENCE, Curve

MARGINS = MappingProxyType({"L1": 1.0, "L1.1": 1.0, "L1.2": 2.0})
"""Points of accuracy either side of full precision between which the interval should lie."""

LOSS_MARGIN = 0.03
"""By how much of itself the final training loss may differ."""

RATIOS = MappingProxyType(
    {(model, level): ratio for model in ("gcn", "sage") for level, ratio in (("L1", 5), ("L1.2", 8))}
)
"""How many times smaller the saved activations should be, on Cora."""

SEEDS, EPOCHS = 2, 60
"""A shorter run is not judged by accuracy and loss: neither has settled."""

FULL_PRECISION_ACCURACY = MappingProxyType({("Cora", "gcn"): 80.0})
"""Test accuracy in percent that the untouched model should reach."""


@dataclass(frozen=True)
class Row:
    """One model at one level, over all seeds. What was not measured is ``None``, or empty.

    Attributes:
        model, level: which.
        accuracies: test accuracies or micro-F1 in percent, in the order of the seeds.
        difference: of them against full precision, in points.
        loss_ratio: mean over seeds of final training loss over full precision's.
        time_ratio: median over rounds of seconds per epoch over full precision's in the same round.
        epoch_seconds: median seconds per epoch.
        memory: what was measured of this level.
        plain_memory: what was measured of the untouched model.
        judged: whether the runs were many and long enough for accuracy and loss to be judged.
        dataset: name of the graph.
        failures: of seeds that did not train to the end, why.
    """

    model: str
    level: str
    accuracies: list[float]
    difference: Difference | None
    loss_ratio: float | None
    time_ratio: float | None
    epoch_seconds: float | None
    memory: Memory | None
    plain_memory: Memory | None
    judged: bool
    dataset: str
    failures: tuple[str, ...] = ()

    @property
    def trained(self) -> bool:
        """Whether there are runs, be it ones that failed."""
        return bool(self.accuracies or self.failures)

    @property
    def accuracy(self) -> float | None:
        """Mean test accuracy in percent."""
        return statistics.fmean(self.accuracies) if self.accuracies else None

    @property
    def accuracy_spread(self) -> float | None:
        """Standard deviation of the accuracies over seeds; ``None`` for one seed."""
        return spread(self.accuracies)

    @property
    def ratio(self) -> float | None:
        """Reported bytes of saved activations, before over after; ``None`` for the untouched model."""
        if self.memory is None or self.memory.original_bytes is None or not self.memory.stored_bytes:
            return None
        return self.memory.original_bytes / self.memory.stored_bytes

    @property
    def agreement(self) -> float | None:
        """Live bytes of the saved tensors, measured, over what the report says is stored; ``None`` where unknown."""
        return None if self.memory is None or self.plain_memory is None else self.memory.agreement(self.plain_memory)

    @property
    def peak_ratio(self) -> float | None:
        """Measured activation peak of the untouched model over this one's; ``None`` where not measured."""
        peaks = [memory and memory.peak_bytes for memory in (self.plain_memory, self.memory)]
        return peaks[0] / peaks[1] if peaks[0] and peaks[1] else None

    # ---- verdicts: see ``Reached`` ----

    @property
    def accuracy_reached(self) -> Reached:
        """Full precision's own accuracy, or the interval of the difference from it."""
        if not self.judged or self.accuracy is None:
            return None
        if self.level == REFERENCE:
            target = FULL_PRECISION_ACCURACY.get((self.dataset, self.model))
            return None if target is None else self.accuracy >= target
        margin = MARGINS.get(self.level)
        return None if margin is None or self.difference is None else self.difference.meets(margin)

    @property
    def loss_reached(self) -> bool | None:
        """The final training loss is full precision's, within ``LOSS_MARGIN``."""
        if self.level == REFERENCE or not self.judged or self.loss_ratio is None:
            return None
        return abs(self.loss_ratio - 1) <= LOSS_MARGIN

    @property
    def ratio_reached(self) -> bool | None:
        """Saved activations are as many times smaller as they should be."""
        target = RATIOS.get((self.model, self.level)) if self.dataset == "Cora" else None
        return None if target is None or self.ratio is None else self.ratio >= target

    @property
    def agreement_reached(self) -> bool | None:
        """The measured bytes are the reported ones, within ``AGREEMENT``."""
        return None if self.agreement is None else abs(self.agreement - 1) <= AGREEMENT


def rows(record: Record) -> Iterator[Row]:
    """One row for each model and level of which there is anything, in the order they ran, a model's together."""
    memories = {(memory.model, memory.level): memory for memory in record.of(Memory)}
    runs: dict[tuple[str, str], list[Curve]] = {}
    for curve in record.of(Curve):
        runs.setdefault((curve.model, curve.level), []).append(curve)
    found = dict.fromkeys([*runs, *memories])
    models = list(dict.fromkeys(model for model, _ in found))
    for model, level in sorted(found, key=lambda one: models.index(one[0])):
        curves = [curve for curve in runs.get((model, level), ()) if not curve.failure]
        plain = {curve.seed: curve for curve in runs.get((model, REFERENCE), ()) if not curve.failure}
        pairs = match_seeds(curves, plain.values())
        epochs = [seconds for curve in curves for seconds in curve.epoch_seconds]
        yield Row(
            model=model,
            level=level,
            accuracies=[curve.test_accuracy for curve in curves],
            difference=paired(curves, plain.values(), lambda curve: curve.test_accuracy),
            loss_ratio=statistics.fmean(curve.final_loss / other.final_loss for curve, other in pairs)
            if pairs
            else None,
            time_ratio=_time_ratio(pairs),
            epoch_seconds=statistics.median(epochs) if epochs else None,
            memory=memories.get((model, level)),
            plain_memory=memories.get((model, REFERENCE)),
            judged=len(curves) >= SEEDS and float(record.settings["recipe"]["epochs"]) >= EPOCHS,
            dataset=record.settings["dataset"],
            failures=tuple(dict.fromkeys(curve.failure for curve in runs.get((model, level), ()) if curve.failure)),
        )


def _time_ratio(pairs: Sequence[tuple[Curve, Curve]]) -> float | None:
    """Of files of before runs were taken up, full precision's times are those of its own curve.

    A run beside which full precision failed, and was made later, has no times to be compared with.
    """
    together = [
        (curve.block_seconds, curve.plain_seconds or plain.block_seconds)
        for curve, plain in pairs
        if curve.plain_seconds or not curve.commit
    ]
    ratios = [seconds / plain for pair in together for seconds, plain in zip(*pair, strict=True)]
    return statistics.median(ratios) if ratios else None
