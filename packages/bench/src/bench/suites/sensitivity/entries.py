"""What ``python -m bench sensitivity`` records: every estimate and every error."""

from __future__ import annotations

import math
from statistics import fmean

from scipy.stats import spearmanr

from bench.results.entry import Entry, at, metric, part, series
from bench.results.record import Kind


@part("model", "a model's tensors, one number a stored copy")
class Sensitivities(Entry):
    """One model."""

    model: str = at("its name")
    what: str = metric("", "model and data in words", default="")
    tensors: list[str] = series("", "names")
    estimates: list[list[float]] = series("", "sensitivities by one backward pass each, of every pass")
    references: list[list[float]] = series("", "two-seed estimates, of every pair; none where not asked for")
    plain_errors: list[float] = series("", "of the whole gradient, relative, by step, with the same bits everywhere")
    planned_errors: list[float] = series("", "the same with the plan, in no more bytes")
    plain_bytes: int = metric("bytes", "that quantised tensors take", default=0)
    planned_bytes: int = metric("bytes", "the same with the plan", default=0)
    predicted: float = metric("", "relative error that the plan predicts", default=0.0)

    @property
    def correlation(self) -> float:
        """Spearman's, of the mean estimate with the mean reference."""
        return _spearman(_mean(self.estimates), _mean(self.references))

    @property
    def correlation_of_one(self) -> float:
        """Spearman's of one pass's estimate, as an unchanged loop has it, with the mean reference."""
        return _spearman(self.estimates[0], _mean(self.references))

    @property
    def split_half(self) -> float:
        """Spearman's between the means of every other pair of seeds: how far the reference can be trusted."""
        return _spearman(_mean(self.references[::2]), _mean(self.references[1::2]))

    @property
    def error_ratio(self) -> float:
        """Root mean square error with the plan over that without."""
        return _root_mean_square(self.planned_errors) / _root_mean_square(self.plain_errors)


KIND = Kind(
    "sensitivity",
    (Sensitivities,),
    {
        "level": "level of the plan",
        "bits": "number of bits of every tensor beside it",
        "pairs": "number of pairs of seeds",
        "steps": "number of steps",
    },
)


def _mean(rows: list[list[float]]) -> list[float]:
    return [fmean(values) for values in zip(*rows, strict=True)]


def _spearman(one: list[float], other: list[float]) -> float:
    if len(one) < 2 or not other:  # nothing to compare, or nothing to compare with
        return float("nan")
    correlation: float = spearmanr(one, other).statistic
    return float(correlation)


def _root_mean_square(values: list[float]) -> float:
    return math.sqrt(fmean(value**2 for value in values))
