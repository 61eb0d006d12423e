"""The figures that GACT and FewBit published of text, as data, with where they are from. None was measured here."""

from __future__ import annotations

from dataclasses import dataclass

GACT = "the benchmark's results in the history of GACT's repository (Liu et al., 2022)"
FEWBIT = "FewBit's notebook exp-matmul-post.ipynb (its stored output), RoBERTa-base on CoLA"
FEWBIT_PAPER = "arXiv 2201.13195 (Bershatsky et al., 2022), RoBERTa-base"


LENGTH = 128  # of sentences, in tokens, wherever time was published


@dataclass(frozen=True)
class Throughput:
    """Of GACT's benchmark: training, ``LENGTH`` tokens, on one GPU that its files do not name.

    Attributes:
        model: a name in ``bench.models.glue_networks.NETWORKS``.
        what: the way in GACT's words.
        way: ours that is closest to it; empty: none is.
        batch: sentences; ``None``: the source does not say.
        sentences: a second.
        plain: of full precision at the same batch; ``None`` where it does not fit or is not known.
    """

    model: str
    what: str
    way: str
    batch: int | None
    sentences: float
    plain: float | None = None


THROUGHPUTS = (
    Throughput("large", "full precision", "plain", 16, 17.66),
    Throughput("large", "4 bits, automatic", "L2", 16, 15.41, 17.66),
    Throughput("large", "4 bits, swapped", "", 16, 12.95, 16.41),
    Throughput("large", "4 bits, swapped, prefetched", "", 16, 13.52, 16.41),
    Throughput("large", "swapped as it is", "", 16, 6.02, 16.41),
    Throughput("large", "full precision, largest batch", "", 24, 17.6),
    Throughput("large", "4 bits, largest batch", "", 128, 14.5),
    Throughput("large", "checkpointed, largest batch", "", 308, 11.2),
    Throughput("large", "all of GACT, largest batch", "", 592, 8.13),
    Throughput("base", "4 bits, swapped", "", None, 39.9, 56.7),
    Throughput("base", "4 bits, swapped, prefetched", "", None, 42.1, 56.7),
    Throughput("base", "swapped as it is", "", None, 17.3, 56.7),
    Throughput("base", "full precision, largest batch", "", 104, 59.1),
    Throughput("base", "4 bits, largest batch", "", 456, 47.2),
    Throughput("base", "checkpointed, largest batch", "", 744, 37.9),
    Throughput("base", "all of GACT, largest batch", "", 1344, 27.2),
)


@dataclass(frozen=True)
class Sketch:
    """A row of FewBit's comparison of sketches.

    Attributes:
        way: a name that ``bench.ways.text`` knows.
        score: Matthews correlation on CoLA, in percent.
        minutes: of the training.
    """

    way: str
    score: float
    minutes: float


def _time(minutes: int, seconds: int) -> float:
    return minutes + seconds / 60


SKETCHES = (
    Sketch("plain", 60.90, _time(8, 44)),
    Sketch("linear 50 % dct", 59.17, _time(16, 26)),
    Sketch("linear 20 % dct", 58.81, _time(16, 37)),
    Sketch("linear 10 % dct", 53.38, _time(17, 24)),
    Sketch("linear 50 % dft", 59.05, _time(12, 20)),
    Sketch("linear 20 % dft", 60.60, _time(11, 42)),
    Sketch("linear 10 % dft", 47.62, _time(12, 25)),
    Sketch("linear 50 % gaussian", 58.60, _time(10, 36)),
    Sketch("linear 20 % gaussian", 57.79, _time(10, 2)),
    Sketch("linear 10 % gaussian", 56.52, _time(10, 3)),
    Sketch("linear 50 % rademacher", 62.38, _time(15, 27)),
    Sketch("linear 20 % rademacher", 59.11, _time(15, 38)),
    Sketch("linear 10 % rademacher", 55.50, _time(15, 43)),
)
"""One run each, whose seeds and spread are not known."""

MNLI = {"plain": 87.7, "linear 10 % gaussian": 86.4}
"""Accuracy, in percent. The kind of sketch is not named; FewBit's own default is the Gaussian one."""
