"""``SensitivityResults``: every estimate and every error, from which the table is computed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from scipy.stats import spearmanr

from bench.machine import Machine


@dataclass(frozen=True)
class Sensitivities:
    """One model's tensors, one entry a stored copy.

    Attributes:
        model: its name.
        what: model and data in words.
        tensors: names.
        estimates: sensitivities by one backward pass each, of every pass.
        references: two-seed estimates, of every pair of seeds; none where they were not asked for.
        plain_errors: relative errors of the whole gradient with the same bits for every quantised tensor, by step.
        planned_errors: the same with the plan, in no more bytes.
        plain_bytes, planned_bytes: that quantised tensors take.
        predicted: relative error that the plan predicts.
    """

    model: str
    what: str
    tensors: list[str]
    estimates: list[list[float]]
    references: list[list[float]]
    plain_errors: list[float]
    planned_errors: list[float]
    plain_bytes: int
    planned_bytes: int
    predicted: float

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


@dataclass(frozen=True)
class SensitivityResults:
    """What ``python -m bench sensitivity`` found.

    Attributes:
        machine: where and with what.
        level: adaptive level of the plan.
        bits: of every tensor beside it.
        models: of every model.
        seconds: that it took.
    """

    machine: Machine
    level: str
    bits: int
    models: list[Sensitivities]
    seconds: float

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> SensitivityResults:
        """From what ``dataclasses.asdict`` made of one."""
        fields = dict(content)
        models = [Sensitivities(**entry) for entry in fields.pop("models")]
        return cls(machine=Machine(**fields.pop("machine")), models=models, **fields)


def _mean(rows: list[list[float]]) -> list[float]:
    return [fmean(values) for values in zip(*rows, strict=True)]


def _spearman(one: list[float], other: list[float]) -> float:
    if len(one) < 2 or not other:  # nothing to compare, or nothing to compare with
        return float("nan")
    correlation: float = spearmanr(one, other).statistic
    return float(correlation)


def _root_mean_square(values: list[float]) -> float:
    return math.sqrt(fmean(value**2 for value in values))
