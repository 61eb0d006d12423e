"""From a measurement to a plan: the bits that change the gradient least within the level's bytes."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from integrations.adaptive.measurement import Measurement, Sensitivity
from integrations.adaptive.plan import Allotment, Plan
from integrations.adaptive.rounding import WIDTHS


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
    chosen, bound = _allocate(costs, [tensor.sizes for tensor in measurement.tensors], budget)
    total = sum(row[choice] for row, choice in zip(costs, chosen, strict=True))
    return Plan(
        tuple(
            _allotment(tensor, row, WIDTHS[choice])
            for tensor, row, choice in zip(measurement.tensors, costs, chosen, strict=True)
        ),
        step,
        budget,
        measurement.gradient,
        (total - bound) / bound if bound > 0 else 0.0,
    )


def _allotment(tensor: Sensitivity, costs: Sequence[float], bits: int) -> Allotment:
    error = costs[bits - 1]
    why = f"sensitivity taken for the usual one: {tensor.why}" if tensor.why else "least error of the gradient"
    return Allotment(
        tensor.identities, bits, error * (2**bits - 1) ** 2, error, tensor.numel, tensor.sizes[bits - 1], why
    )


def _allocate(costs: Sequence[Sequence[float]], sizes: Sequence[Sequence[int]], budget: int) -> tuple[list[int], float]:
    """For each row a position in it, so that the costs add up to little and the sizes to no more than ``budget``; and
    a lower bound of the least sum of costs.

    Greedy along each row's lower convex hull: the linear relaxation's solution, rounded down (Zemel 1980).
    """
    choices = [row.index(min(row)) for row in sizes]
    left = budget - sum(row[choice] for row, choice in zip(sizes, choices, strict=True))
    steps = sorted(
        (
            (slope, place, start, end)
            for place, (cost, size) in enumerate(zip(costs, sizes, strict=True))
            for slope, start, end in _hull(cost, size, choices[place])
        ),
        reverse=True,
    )
    value = sum(row[choice] for row, choice in zip(costs, choices, strict=True))
    bound: float | None = None
    for slope, place, start, end in steps:
        more = sizes[place][end] - sizes[place][start]
        if choices[place] == start and more <= left:
            choices[place], left, value = end, left - more, value + costs[place][end] - costs[place][start]
        elif bound is None:
            bound = value - slope * left
    return choices, value if bound is None else max(0.0, bound)


def _hull(costs: Sequence[float], sizes: Sequence[int], start: int) -> list[tuple[float, int, int]]:
    """The steps along the lower convex hull, from the smallest choice: cost saved a byte, from, to."""
    steps: list[tuple[float, int, int]] = []
    while True:
        slope, end = max(
            (
                ((costs[start] - costs[at]) / (sizes[at] - sizes[start]), at)
                for at in range(len(costs))
                if sizes[at] > sizes[start] and costs[at] < costs[start]
            ),
            default=(0.0, start),
        )
        if end == start:
            return steps
        steps.append((slope, start, end))
        start = end
