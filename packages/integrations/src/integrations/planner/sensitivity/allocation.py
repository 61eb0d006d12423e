"""From a measurement to a plan: the bits that change the gradient least within the level's bytes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from statistics import median
from types import MappingProxyType

from actcore import allocate
from integrations.planner.sensitivity.bit_plan import Allotment, BitPlan
from integrations.planner.sensitivity.measurement import Measurement, Sensitivity
from integrations.planner.sensitivity.rounding import WIDTHS
from integrations.tracing.attention import OPERATOR as ATTENTION


def plan_of(measurement: Measurement, bits: int, step: int) -> BitPlan:
    """The plan with the least predicted error among those that take no more bytes than ``bits`` an element would.

    Args:
        measurement: finite, of one model.
        bits: the average, bounds of groups apart: the budget is what the same tensors take with ``bits`` each.
        step: number of the forward that was measured.
    """
    budget = sum(tensor.sizes[bits - 1] for tensor in measurement.tensors)
    known = [(tensor.costs[bits - 1], tensor.energies[bits - 1]) for tensor in measurement.tensors if tensor.costs]
    usual = median(cost / energy for cost, energy in known if energy) if any(energy for _, energy in known) else 1.0
    costs = [tensor.costs or tuple(usual * energy for energy in tensor.energies) for tensor in measurement.tensors]
    costs = [_with_bends(tensor, row) for tensor, row in zip(measurement.tensors, costs, strict=True)]
    solved = allocate(costs, [tensor.sizes for tensor in measurement.tensors], budget)
    return BitPlan(
        tuple(
            _allotment(tensor, row, WIDTHS[choice])
            for tensor, row, choice in zip(measurement.tensors, costs, solved.choices, strict=True)
        ),
        step,
        budget,
        measurement.gradient,
        solved.gap,
    )


# The model takes the gradient's change to be linear in the rounding error. At one bit each element becomes one of its
# group's two ends, and what is not linear bends: times so much for 1 bit, for 2 bits and so on. Found with ViT-tiny,
# BERT and encoders of 2 and 4 layers, whose error with all other bits is what the model says.
_BENDS = MappingProxyType({ATTENTION: (4.0, 1.5), "layer_norm": (2.0,), "rms_norm": (2.0,)})


def _with_bends(tensor: Sensitivity, costs: Sequence[float]) -> tuple[float, ...]:
    found = [bends for operator, bends in _BENDS.items() if any(one.operator == operator for one in tensor.identities)]
    most = [max(times) for times in zip_longest(*found, fillvalue=1.0)]
    return tuple(cost * times for cost, times in zip_longest(costs, most, fillvalue=1.0))


def _allotment(tensor: Sensitivity, costs: Sequence[float], bits: int) -> Allotment:
    error = costs[bits - 1]
    why = f"sensitivity taken for the usual one: {tensor.why}" if tensor.why else "least error of the gradient"
    return Allotment(
        tensor.identities, bits, error * (2**bits - 1) ** 2, error, tensor.numel, tensor.sizes[bits - 1], why
    )
