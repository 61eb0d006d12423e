"""``ablation``: what each of ActNN's steps towards mixed precision takes off the variance of the gradient."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from integrations.qmodules.convert import QModule
from integrations.qmodules.levels import LEVELS, ONE_GROUP, QLevel
from integrations.qmodules.variance import GradientVariance, get_var


def ablation_levels(bits: float = 2) -> dict[str, QLevel]:
    """The levels that ActNN's ablation compares (Chen et al., ICML 2021, section 6.2), each with the one before's bits.

    Args:
        bits: the average per element, from 1 to 8.
    """
    uniform = replace(LEVELS["L3"], bits=(bits,), per_sample=False, norm_adaptive=False, per_layer=False)
    per_sample = replace(uniform, per_sample=True, norm_adaptive=True)
    return {
        "per tensor": replace(uniform, group_size=ONE_GROUP),
        "per group": uniform,
        "+ per sample": per_sample,
        "+ per layer": replace(per_sample, per_layer=True),
    }


def ablation(
    model: nn.Module, step: Callable[[nn.Module], Any], bits: float = 2, repeats: int = 10
) -> dict[str, GradientVariance]:
    """The variance of a model's gradient at each of ``ablation_levels``.

    Args:
        model: not converted; it is copied for each level and stays as it is.
        step: runs a forward and a backward of the model that it is given, on the same batch each time, and takes no
            step of an optimizer. It runs twice more for each level, in which layers get their bits.
        bits: the average per element.
        repeats: see ``get_var``.

    Returns:
        The results by the levels' names, in their order.
    """
    results = {}
    for name, level in ablation_levels(bits).items():
        converted = QModule(copy.deepcopy(model), level)
        step(converted)
        step(converted)
        results[name] = get_var(converted, lambda: step(converted), repeats)  # noqa: B023  # called at once
    return results
