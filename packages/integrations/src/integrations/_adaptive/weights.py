"""Weights of a graph's values before anything is measured, by what backward needs of them and how much depends on it.

The weight of a value is the square of the gradient's relative error for a rounding noise as large as the value itself.
It has two factors:

* What noise does to the results of the node that reads the value. A layer's weight has the gradient ``g.T @ x``: noise
  in ``x`` as large as ``x`` makes an error as large as that sum of products, if these are incoherent; if they agree,
  the sum is larger and the error relatively smaller. In a product ``a * b``, noise in ``a`` is noise in the gradient of
  ``b``. For nonlinear operators only a part of the gradient depends on the value, and only that part is wrong: for a
  norm the correction for mean and scale, for an activation what its slope changes.
* How much of the whole gradient is concerned. Layers are taken to have equal shares of its energy, except the last one,
  whose share does not shrink with depth. What goes on into the gradients below concerns the shares of all layers whose
  way to the output passes the node; if a value has several readers, each is taken to contribute as much to its
  gradient. Parameters whose gradients need no value (a bias, an embedding, a prompt, a layer of the model's input)
  leave no trace in what is saved, nor do frozen ones. So each operator that reads no value is taken to have as much
  behind it as a layer has: rather too much than nothing.

Both are rough: nets differ, and one net differs from step to step. Once there is a measurement, it is used for every
value that it knows. The other values keep their weights by the rules, corrected as the known ones were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from integrations._adaptive.measurement import Measurement
from integrations._adaptive.rounding import WIDTHS
from integrations._adaptive.saves import Save, final_values, readers_of
from integrations._step.capturing.loss import OF_LOSSES
from integrations._step.graphs.graph import Graph
from integrations.rules.rules import Need

# The part of the energy that a node passes on which is as wrong as the value that it reads. Chosen so that, with 4 bits
# everywhere, the predicted error is 1 to 3 times what a step's measurement predicts for Llama, ViT, ResNets, U-Net and
# GAT, untrained and after 20 steps, and 2 to 4 times for a small MLP. For a BERT it is 1.4 times, and 7 times once it
# has learnt its batch by heart: what is left of its gradient comes from the last layers alone.
_PARTS: Mapping[Need, float] = MappingProxyType(
    {
        Need.LINEAR: 1.0,
        Need.PRODUCT: 1.0,
        Need.NORM: 0.05,
        Need.MOMENT: 0.3,
        Need.SATURATING: 0.1,
        Need.BOUNDED: 1.0,
        Need.ATTENTION: 0.05,
        Need.RECOMPUTED: 1.0,
    }
)
# Operators with another part: a convolution adds up many places, which agree.
_OPERATORS = MappingProxyType(dict.fromkeys(("conv1d", "conv2d", "conv3d"), 0.3))
_VECTOR = 0.1  # the share of a norm's weight, relative to a layer's
_LAST = 0.3  # the share of the last layer's weight in the gradient's energy


UNKNOWN_LOSS = 0.7
"""The part of a bound on the error that may be measured where drawn gradients of the output stand for the loss's. A
loss whose gradient is concentrated in few elements leaves a smaller gradient of the parameters to divide by: the error
was 1.1 times as large with the cross-entropy of an MLP, and 1.4 times with that of a batch that it had learnt."""

KNOWN_LOSS = 0.9
"""The part of a bound on the error that may be measured with the loss itself: another step draws other noise and
dropout. Eight such steps of a BERT had 0.92 to 1.06 of their mean, and a plan that was allowed 0.95 of its bound had
1.02 of it in training. So steps above the bound are rare, and not impossible."""

_RANGE = 5.6
Ways = Mapping[tuple[int, int], float]


def noise_of(bits: int) -> float:
    """The variance of rounding to so many bits, relative to the mean square of the elements.

    256 normally distributed elements that share bounds have a range of 5.6 deviations; stochastic rounding has a sixth
    of the squared step as its variance, if elements lie anywhere between two codes.
    """
    return _RANGE**2 / 6 / float(2**bits - 1) ** 2


def usual_weights(graph: Graph, saves: Sequence[Save]) -> tuple[float, ...]:
    """The weights of a graph's values by the rules, from what its capture saw saved."""
    readers, last = readers_of(graph), final_values(graph)
    at = [_saver(save, graph, readers) for save in saves]
    shares = _shares({op for save, op in zip(saves, at, strict=True) if save.of_layer})
    layers = max(1, len(shares))
    sources = [op for op, found in enumerate(graph.ops) if not found.reads and op not in shares]
    # Mostly one of them is the first layer; many are casts of weights, which have the shares of their layers.
    shares |= dict.fromkeys(sources, 1 / max(1, len(shares) + len(sources) - 1))
    ways = _ways(graph, readers)
    passing = _passing(graph, readers, ways, shares)
    weights = [0.0] * len(graph.values)
    for save, op in zip(saves, at, strict=True):
        part = _OPERATORS.get(save.identity.operator, _PARTS.get(save.need))
        if part is None:
            continue
        concerned = shares[op] if save.of_layer else _concerned(save, op, graph, ways, passing)
        if concerned is None:
            concerned = _VECTOR / layers
        weights[last[save.value]] += part * concerned
    return tuple(weights)


def measured_weights(graph: Graph, saves: Sequence[Save], measurement: Measurement) -> tuple[float, ...]:
    """The weights from the measurement of one step. For each value the largest error of all widths counts, since errors
    grow differently from ``noise_of`` where elements are not normally distributed.

    A value whose gradient was zero in that step, as behind an adapter that starts at zero, keeps its weight by the
    rules: the next step's gradient is not zero. All weights are increased by what keeps the bound in other steps, see
    ``KNOWN_LOSS``, or with an unknown loss, see ``UNKNOWN_LOSS``.
    """
    last, usual = final_values(graph), usual_weights(graph, saves)
    value_of = {save.identity: last[save.value] for save in saves}
    weights: dict[int, float] = {}
    for tensor in measurement.tensors:
        found = next((value_of[name] for name in tensor.identities if name in value_of), None)
        if found is not None and tensor.costs and measurement.gradient:
            costs = zip(WIDTHS[1:], tensor.costs[1:], strict=True)
            most = max(cost / measurement.gradient / noise_of(bits) for bits, cost in costs)
            weights[found] = weights.get(found, 0.0) + most
    expected = sum(usual[value] for value, weight in weights.items() if weight)
    correction = sum(weights.values()) / expected if expected else 1.0
    more = part_of_bound(graph) ** -2
    return tuple(more * (weights.get(value) or correction * weight) for value, weight in enumerate(usual))


def part_of_bound(graph: Graph) -> float:
    """The part of a bound on the error that a plan aims at, by what such a step's backward tells."""
    return KNOWN_LOSS if graph.differentiated in OF_LOSSES else UNKNOWN_LOSS


def _saver(save: Save, graph: Graph, readers: Sequence[Sequence[int]]) -> int:
    """The operator that saves a tensor: the next one that reads it, or the one that made it."""
    if save.identity.role in ("result", "internal"):
        return graph.values[save.value].producer
    following = (op for op in readers[save.value] if op > save.after)
    return next(following, readers[save.value][-1] if readers[save.value] else graph.values[save.value].producer)


def _shares(layers: set[int]) -> dict[int, float]:
    """By layer: its share of the gradient's energy."""
    if not layers:
        return {}
    if len(layers) < 1 / _LAST:
        return dict.fromkeys(layers, 1 / len(layers))
    shares = dict.fromkeys(layers, (1 - _LAST) / (len(layers) - 1))
    shares[max(layers)] = _LAST
    return shares


def _ways(graph: Graph, readers: Sequence[Sequence[int]]) -> dict[tuple[int, int], float]:
    """By value and operator that reads it: the part of the value's gradient that comes from there."""

    def bypasses(op: int) -> bool:
        return graph.ops[op].name.startswith(("aten.add.", "aten.add_.")) and len(graph.ops[op].reads) > 1

    forks = [value for value, ops in enumerate(readers) if 0 < sum(map(bypasses, ops)) < len(ops)]
    ways: dict[tuple[int, int], float] = {}
    for value, ops in enumerate(readers):
        parts = [1.0 if bypasses(op) else 1.0 / max(1, len(forks)) for op in ops]
        ways.update({(value, op): part / sum(parts) for op, part in zip(ops, parts, strict=True)})
    return ways


def _passing(graph: Graph, readers: Sequence[Sequence[int]], ways: Ways, shares: Mapping[int, float]) -> list[float]:
    """By value: the share of the gradient's energy that belongs to layers below and passes it."""
    passing = [0.0] * len(graph.values)
    for number, op in enumerate(graph.ops):
        below = shares.get(number, 0.0) + sum(passing[value] * ways[value, number] for value in op.reads)
        used = [value for value in op.makes if readers[value]] or list(op.makes[:1])
        for value in used:
            passing[value] = below / len(used)
    return passing


def _concerned(save: Save, op: int, graph: Graph, ways: Ways, passing: Sequence[float]) -> float | None:
    """The share of the gradient's energy that is wrong if what the operator has saved is. ``None`` for a tensor that
    only makes the gradient of a parameter by which it is multiplied element by element."""
    reads = graph.ops[op].reads
    if not reads:
        return passing[save.value]
    if save.need is not Need.PRODUCT or save.value not in reads:
        return sum(passing[value] * ways[value, op] for value in reads)
    # A factor makes the other one's gradient, which is a sum if the other is smaller, and errors average out in it.
    others = [value for value in reads if value != save.value]
    size = max(1, graph.values[save.value].nbytes)
    sizes = ((value, min(1, graph.values[value].nbytes / size)) for value in others)
    return sum(passing[value] * ways[value, op] * part for value, part in sizes) if others else None
