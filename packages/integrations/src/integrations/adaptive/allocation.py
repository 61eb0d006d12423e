"""From a measurement to a plan: the bits that change the gradient least within the level's bytes."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from actcore import allocate
from integrations.adaptive.measurement import Measurement, Sensitivity
from integrations.adaptive.plan import Allotment, Plan
from integrations.adaptive.rounding import WIDTHS
from integrations.saved.attention import OPERATOR as ATTENTION


def plan_of(measurement: Measurement, bits: int, step: int) -> Plan:
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
    least = [min(_least(tensor), bits) for tensor in measurement.tensors]
    solved = allocate(
        [row[first - 1 :] for row, first in zip(costs, least, strict=True)],
        [tensor.sizes[first - 1 :] for tensor, first in zip(measurement.tensors, least, strict=True)],
        budget,
    )
    return Plan(
        tuple(
            _allotment(tensor, row, WIDTHS[first - 1 + choice])
            for tensor, row, first, choice in zip(measurement.tensors, costs, least, solved.choices, strict=True)
        ),
        step,
        budget,
        measurement.gradient,
        solved.gap,
    )


def _least(tensor: Sensitivity) -> int:
    """The fewest bits at which the variance model can be believed. It takes the gradient's change to be linear in the
    rounding error, which attention's is not where each element of query and key is one of its group's two ends: at
    one bit they do four times the harm that it says (ViT-tiny, BERT)."""
    return 2 if any(identity.operator == ATTENTION for identity in tensor.identities) else 1


def _allotment(tensor: Sensitivity, costs: Sequence[float], bits: int) -> Allotment:
    error = costs[bits - 1]
    why = f"sensitivity taken for the usual one: {tensor.why}" if tensor.why else "least error of the gradient"
    return Allotment(
        tensor.identities, bits, error * (2**bits - 1) ** 2, error, tensor.numel, tensor.sizes[bits - 1], why
    )
