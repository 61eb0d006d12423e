"""``FewBitResults``: everything ``python -m bench fewbit`` found, with what is needed to repeat it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from bench.fewbit.training import EXACT, FEW_BITS, BertRun
from bench.machine import Machine
from bench.statistics import Difference, paired_difference


@dataclass(frozen=True)
class Peak:
    """Memory of steps of RoBERTa, trained in one way.

    Attributes:
        way: of ``bench.fewbit.roberta.WAYS``, or a cell of the grid.
        kept_bytes: that live after the forward and did not before, by step.
        peak_bytes: the most during forward and backward, more than before, by step. Gradients are among them.
        raw_bytes: the most in all, by step: with weights, and on the CPU with the process itself.
        gradient_bytes: of the gradients of all parameters.
        not_measured: why nothing was measured; empty otherwise.
        commit: that it was measured with; empty in older files, and where a cell of the grid says it.
    """

    way: str
    kept_bytes: list[int] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)
    raw_bytes: list[int] = field(default_factory=list)
    gradient_bytes: int = 0
    not_measured: str = ""
    commit: str = ""

    @property
    def activation_bytes(self) -> float:
        """The activation peak: without the gradients; the median over steps."""
        return median(self.peak_bytes) - self.gradient_bytes


@dataclass(frozen=True)
class GridCell:
    """Memory of a step of RoBERTa with a number of bits and a ratio.

    Attributes:
        bits: of GELU; ``None``: exact.
        ratio: of the rows that linear layers keep; ``None``: exact.
        network: its shape in words.
        batch: sequences of its input.
        peak: what was measured; ``None`` where nothing was.
        failure: what went wrong; empty otherwise.
        commit: that this was measured with.
    """

    bits: int | None
    ratio: float | None
    network: str
    batch: int
    peak: Peak | None = None
    failure: str = ""
    commit: str = ""

    @property
    def name(self) -> str:
        """In words."""
        gelu = "exact GELU" if self.bits is None else f"{self.bits}-bit GELU"
        return f"{gelu}, {'exact linear' if self.ratio is None else f'{self.ratio:.0%} of the rows'}"

    @property
    def identity(self) -> tuple[object, ...]:
        """What tells it from other cells."""
        return self.network, self.batch, self.ratio, self.bits

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> GridCell:
        """From what ``dataclasses.asdict`` made of one."""
        fields = dict(content)
        peak = fields.pop("peak")
        return cls(peak=None if peak is None else Peak(**peak), **fields)


@dataclass(frozen=True)
class Times:
    """Forward and backward of one thing beside torch's own, in turn.

    Attributes:
        name: of a function or of a kind of sketch.
        what: ``"activation"`` or ``"linear"``.
        elements: of its input, float32.
        seconds: by round.
        plain_seconds: of torch's own.
        commit: that it was timed with; empty in older files.
    """

    name: str
    what: str
    elements: int
    seconds: list[float]
    plain_seconds: list[float]
    commit: str = ""

    @property
    def ratio(self) -> float:
        """Median over median."""
        return median(self.seconds) / median(self.plain_seconds)


@dataclass(frozen=True)
class Comparison:
    """Runs of one kind beside the exact ones of the same seeds.

    Attributes:
        seeds: how many pairs.
        exact, other: losses, by seed.
        difference: of the losses, the others' less the exact ones'.
    """

    seeds: int
    exact: list[float]
    other: list[float]
    difference: Difference

    @property
    def ratio(self) -> float:
        """The mean loss over the exact one's."""
        return fmean(self.other) / fmean(self.exact)


@dataclass(frozen=True)
class FewBitResults:
    """What ``python -m bench fewbit`` found; empty lists for the parts that were not run.

    Attributes:
        machine: where and with what.
        device: that memory and time are of: ``"cpu"`` or ``"cuda"``.
        network: whose memory was measured, in words; empty where none was.
        batch: sequences of its input.
        data: the sentences in words; empty where none were needed.
        recipe: of training, by name of the setting; empty where there was none.
        entropy: of the held-out words that were to be guessed, in nats.
        peaks: by way of training RoBERTa, the untouched one first.
        runs: of every training run.
        times: of activations and linear layers.
        skipped: what was left out, and why.
        seconds: that it took, what was taken up included.
        grid: RoBERTa's peaks by bits and ratio.
    """

    machine: Machine
    device: str
    network: str = ""
    batch: int = 0
    data: str = ""
    recipe: dict[str, float] = field(default_factory=dict)
    entropy: float = 0.0
    peaks: list[Peak] = field(default_factory=list)
    runs: list[BertRun] = field(default_factory=list)
    times: list[Times] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    seconds: float = 0.0
    grid: list[GridCell] = field(default_factory=list)

    def held_out(self, kind: str = FEW_BITS) -> Comparison:
        """The losses of the pairs that were not trained on."""
        return self._compare(kind, lambda run: run.held_out)

    def training_loss(self, kind: str = FEW_BITS) -> Comparison:
        """The training losses of the last steps."""
        return self._compare(kind, lambda run: run.losses[-1])

    def _compare(self, kind: str, loss: Callable[[BertRun], float]) -> Comparison:
        others = {run.seed: loss(run) for run in self.runs if run.kind == kind}
        exact = {run.seed: loss(run) for run in self.runs if run.kind == EXACT and run.seed in others}
        other = [others[seed] for seed in exact]
        return Comparison(len(exact), list(exact.values()), other, paired_difference(other, list(exact.values())))

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> FewBitResults:
        """From what ``dataclasses.asdict`` made of one."""
        fields = dict(content)
        return cls(
            machine=Machine(**fields.pop("machine")),
            peaks=[Peak(**entry) for entry in fields.pop("peaks")],
            runs=[BertRun(**entry) for entry in fields.pop("runs")],
            times=[Times(**entry) for entry in fields.pop("times")],
            grid=[GridCell.of(entry) for entry in fields.pop("grid", [])],
            **fields,
        )
