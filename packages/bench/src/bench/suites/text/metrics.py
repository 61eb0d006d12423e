"""GLUE's metrics, of labels and of what was guessed, in percent as the papers' tables have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from sklearn import metrics

Values = NDArray[np.generic]


def accuracy(labels: Values, guesses: Values) -> float:
    """The part that is guessed."""
    return float(100 * np.mean(labels == guesses))


def f1(labels: Values, guesses: Values) -> float:
    """The harmonic mean of precision and recall of class 1; 0 where nothing of it is guessed."""
    return float(100 * metrics.f1_score(labels, guesses, zero_division=0))


def matthews(labels: Values, guesses: Values) -> float:
    """The correlation of labels and guesses; 0 where all guesses are alike."""
    return float(100 * metrics.matthews_corrcoef(labels, guesses))


def pearson(labels: Values, guesses: Values) -> float:
    """The correlation of numbers; 0 where all guesses are alike, which have none."""
    return 0.0 if _constant(labels, guesses) else float(100 * stats.pearsonr(labels, guesses).statistic)


def spearman(labels: Values, guesses: Values) -> float:
    """The correlation of their ranks; 0 where all guesses are alike."""
    return 0.0 if _constant(labels, guesses) else float(100 * stats.spearmanr(labels, guesses).statistic)


def _constant(*values: Values) -> bool:
    return any(len(np.unique(one)) < 2 for one in values)


METRICS: Mapping[str, Callable[[Values, Values], float]] = MappingProxyType(
    {"accuracy": accuracy, "f1": f1, "matthews": matthews, "pearson": pearson, "spearman": spearman}
)
"""By name."""
