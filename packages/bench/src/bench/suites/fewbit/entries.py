"""What ``python -m bench fewbit`` records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, median

from bench.results.entry import Entry, at, metric, metrics, part, series
from bench.results.record import Kind, Record, match_seeds, order_by
from bench.results.statistics import Difference, paired_difference
from bench.ways.roberta import BITS, RATIOS

EXACT, FEW_BITS, COMPRESSED = "exact", f"{BITS} bits", f"L1, {BITS} bits"
CONTROL = "no gradient"
"""A run of the first seed whose gradients are set to zero: what a comparison must tell from all others."""


@metrics
class Sized(Entry):
    """Memory of steps of RoBERTa."""

    kept_bytes: list[int] = series("bytes", "that live after the forward and did not before, by step")
    peak_bytes: list[int] = series("bytes", "the most in forward and backward, more than before, with gradients")
    raw_bytes: list[int] = series("bytes", "the most in all: with weights, and on the CPU with the process itself")
    gradient_bytes: int = metric("bytes", "of the gradients of all parameters", default=0)

    @property
    def activation_bytes(self) -> float:
        """The activation peak: without the gradients; the median over steps."""
        return median(self.peak_bytes) - self.gradient_bytes


@part("memory", "steps of RoBERTa, trained in one of FewBit's ways")
class Peak(Sized):
    """One way."""

    way: str = at("of bench.ways.roberta.WAYS")
    network: str = at("in words")
    batch: int = at("sequences of its input")


@part("grid", "a step of RoBERTa with a number of bits and a ratio")
class GridCell(Sized):
    """One cell."""

    bits: int | None = at("of GELU; none: exact")
    ratio: float | None = at("of the rows that linear layers keep; none: exact")
    network: str = at("its shape in words")
    batch: int = at("sequences of its input")

    @property
    def label(self) -> str:
        """The coordinates in words."""
        gelu = "exact GELU" if self.bits is None else f"{self.bits}-bit GELU"
        linear = "exact linear" if self.ratio is None else f"{self.ratio:.0%} of the rows"
        return f"{gelu}, {linear}, batch {self.batch}"


@part("training", "a BERT, trained from scratch")
class BertRun(Entry):
    """One run."""

    kind: str = at(f"{EXACT}, {FEW_BITS}, {COMPRESSED} or {CONTROL}")
    seed: int = at("of weights, order, masks and dropout")
    losses: list[float] = series("nats a word", "of training, means over some steps")
    held_out: float = metric("nats a word", "of the pairs that were not trained on, after the last step", default=0.0)
    seconds: float = metric("s", "that it took", default=0.0)


@part("time", "forward and backward of one thing beside torch's own, in turn")
class Times(Entry):
    """A function, or a kind of sketch."""

    name: str = at("of it")
    what: str = at("activation or linear")
    elements: int = metric("", "of its input, float32", default=0)
    seconds: list[float] = series("s", "by round")
    plain_seconds: list[float] = series("s", "of torch's own")

    @property
    def ratio(self) -> float:
        """Median over median."""
        return median(self.seconds) / median(self.plain_seconds)


@dataclass(frozen=True)
class Comparison:
    """Runs of one kind beside the exact ones of the same seeds.

    Attributes:
        exact, other: losses, by seed.
        difference: of the losses, the others' less the exact ones'.
    """

    exact: list[float]
    other: list[float]
    difference: Difference

    @property
    def seeds(self) -> int:
        """How many pairs."""
        return len(self.exact)

    @property
    def ratio(self) -> float:
        """The mean loss over the exact one's."""
        return fmean(self.other) / fmean(self.exact)


def held_out(record: Record, kind: str = FEW_BITS) -> Comparison:
    """The losses of the pairs that were not trained on."""
    return _compare(record, kind, lambda run: run.held_out)


def training_loss(record: Record, kind: str = FEW_BITS) -> Comparison:
    """The training losses of the last steps."""
    return _compare(record, kind, lambda run: run.losses[-1])


def _compare(record: Record, kind: str, loss: Callable[[BertRun], float]) -> Comparison:
    done = [run for run in record.of(BertRun) if run.losses]
    others = [run for run in done if run.kind == kind]
    pairs = match_seeds(others, [run for run in done if run.kind == EXACT])
    exact, other = [loss(plain) for _, plain in pairs], [loss(run) for run, _ in pairs]
    return Comparison(exact, other, paired_difference(other, exact))


KIND = Kind(
    "fewbit",
    (Peak, GridCell, BertRun, Times),
    {"device": "device"},
    {
        "data": "set of sentences",
        "recipe": "recipe of training",
        "entropy": "entropy of the words to be guessed, in nats",
    },
    order_by(network=None, batch=None, ratio=RATIOS, bits=(None, 1, 2, 3, 4)),
    ("transformers",),
)
