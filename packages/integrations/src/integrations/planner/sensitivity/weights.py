"""How noise in a graph's values changes the gradient of each layer, by what backward needs of the values.

``layer_noise`` has a coefficient for each value and layer: the square of the relative error of the layer's gradient for
a rounding noise as large as the value itself. It has two factors:

* What noise does to the results of the node that reads the value. A layer's weight has the gradient ``g.T @ x``: noise
  in ``x`` as large as ``x`` makes an error as large as that sum of products, if these are incoherent; if they agree,
  the sum is larger and the error relatively smaller. In a product ``a * b``, noise in ``a`` is noise in the gradient of
  ``b``. For nonlinear operators only a part of the gradient depends on the value, and only that part is wrong: for a
  norm the correction for mean and scale, for an activation what its slope changes.
* How much of the layer's gradient is concerned. A layer's input concerns that layer alone. Noise that goes on into the
  gradients below concerns the layers whose way to the output passes the node; if a value has several readers, each is
  taken to contribute as much to its gradient.

The whole gradient's error is the sum over layers, by their shares of its energy. Before anything is measured, layers
are taken to have equal shares, except the last one, whose share does not shrink with depth. Parameters whose gradients
need no value (a bias, an embedding, a prompt, a layer of the model's input) leave no trace in what is saved, nor do
frozen ones. So each operator that reads no value is taken to be a layer: rather too much than nothing.

Both factors are rough: nets differ, and one net differs from step to step. ``_measuring`` measures errors by layer in
training, and corrects the coefficients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor

from integrations.capture.graphs.graph import Graph
from integrations.planner.sensitivity.saves import Save, final_values, find_readers
from integrations.policies.rules import Need

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


_RANGE = 5.6
Ways = Mapping[tuple[int, int], float]


def estimate_noise(bits: int) -> float:
    """The variance of rounding to so many bits, relative to the mean square of the elements.

    256 normally distributed elements that share bounds have a range of 5.6 deviations; stochastic rounding has a sixth
    of the squared step as its variance, if elements lie anywhere between two codes.
    """
    return _RANGE**2 / 6 / float(2**bits - 1) ** 2


@dataclass(frozen=True, eq=False)
class LayerNoise:
    """How noise in each value of a graph changes the gradient of each layer.

    Attributes:
        layers: a path of modules for each layer: of the module that runs it, or, in a model of very many layers, of a
            module around several.
        shares: the layers' usual shares of the whole gradient's energy.
        parts: the square of the relative error of a layer's gradient for a noise of 1 in a value, ``Float[values,
            layers]``.
        rest: the same of parameters that no layer has, such as a norm's, times their share of the whole.
    """

    layers: tuple[str, ...]
    shares: tuple[float, ...]
    parts: Tensor
    rest: tuple[float, ...]

    def corrected(self, factors: Mapping[str, float], usual: float) -> LayerNoise:
        """Return the coefficients multiplied by each layer's factor; by ``usual`` where a layer has none."""
        each = torch.tensor([factors.get(layer, usual) for layer in self.layers], dtype=torch.float64)
        return replace(self, parts=self.parts * each, rest=tuple(usual * part for part in self.rest))

    def weights(self, shares: Sequence[float]) -> tuple[float, ...]:
        """Return the square of the whole gradient's relative error for a noise of 1 in each value.

        Args:
            shares: the layers' shares of the whole gradient's energy.
        """
        found = self.parts @ torch.tensor(shares, dtype=torch.float64)
        return tuple((found + torch.tensor(self.rest, dtype=torch.float64)).tolist())

    def errors(self, noises: Mapping[int, float]) -> list[float]:
        """Return the squared relative error of each layer's gradient for these noises of values."""
        values = list(noises)
        noise = torch.tensor([noises[value] for value in values], dtype=torch.float64)
        found: list[float] = (noise @ self.parts[values]).tolist()
        return found


def usual_weights(graph: Graph, saves: Sequence[Save]) -> tuple[float, ...]:
    """Return the weights of a graph's values, see ``LayerNoise.weights``, before anything is measured.

    Args:
        graph: a captured graph.
        saves: the tensors that autograd saved in its capture.
    """
    found = layer_noise(graph, saves)
    return found.weights(found.shares)


def layer_noise(graph: Graph, saves: Sequence[Save]) -> LayerNoise:
    """Return how noise in a graph's values changes the gradients of its layers.

    Args:
        graph: a captured graph.
        saves: the tensors that autograd saved in its capture.
    """
    readers, last = find_readers(graph), final_values(graph)
    at = [_saver(save, graph, readers) for save in saves]
    shares = _shares({op for save, op in zip(saves, at, strict=True) if save.of_layer})
    count = max(1, len(shares))
    sources = [op for op, found in enumerate(graph.ops) if not found.reads and op not in shares]
    # Mostly one of them is the first layer; many are casts of weights, which have the shares of their layers.
    shares |= dict.fromkeys(sources, 1 / max(1, len(shares) + len(sources) - 1))
    columns, layers = _columns(graph, shares)
    total = [0.0] * len(layers)
    for op, share in shares.items():
        total[columns[op]] += share
    own = {op: (columns[op], share / total[columns[op]]) for op, share in shares.items()}
    ways = _ways(graph, readers)
    passing = _passing(graph, readers, ways, own, len(layers))
    parts, rest = torch.zeros(len(graph.values), len(layers), dtype=torch.float64), [0.0] * len(graph.values)
    for save, op in zip(saves, at, strict=True):
        part = _OPERATORS.get(save.identity.operator, _PARTS.get(save.need))
        if part is None:
            continue
        value = last[save.value]
        if save.of_layer:
            column, share = own[op]
            parts[value, column] += part * share
        elif (concerned := _concerned(save, op, graph, ways, passing)) is None:
            rest[value] += part * _VECTOR / count
        else:
            parts[value] += part * concerned
    return LayerNoise(tuple(layers), tuple(total), parts, tuple(rest))


_MOST_LAYERS = 512
"""More layers than these are merged by the modules around them."""


def _columns(graph: Graph, shares: Mapping[int, float]) -> tuple[dict[int, int], list[str]]:
    """Return the column of each operator that is a layer, and each column's module."""
    paths = {op: graph.ops[op].module for op in shares}
    while len(set(paths.values())) > _MOST_LAYERS:
        deepest = max(path.count(".") for path in paths.values())
        if not deepest:
            break
        paths = {op: path.rpartition(".")[0] if path.count(".") == deepest else path for op, path in paths.items()}
    layers = list(dict.fromkeys(paths[op] for op in sorted(paths)))
    place = {path: column for column, path in enumerate(layers)}
    return {op: place[path] for op, path in paths.items()}, layers


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


def _passing(
    graph: Graph,
    readers: Sequence[Sequence[int]],
    ways: Ways,
    own: Mapping[int, tuple[int, float]],
    layers: int,
) -> list[Tensor]:
    """Return, by value, the part of each layer's gradient energy that passes it.

    Args:
        graph, readers, ways: the graph, and what follows from it.
        own: by operator that is a layer, its column, and its share of that.
        layers: the number of columns.
    """
    nothing = torch.zeros(layers, dtype=torch.float64)
    passing = [nothing] * len(graph.values)
    for number, op in enumerate(graph.ops):
        below = [passing[value] * ways[value, number] for value in op.reads if passing[value] is not nothing]
        if number in own:
            column, share = own[number]
            below.append(nothing.clone())
            below[-1][column] = share
        if not below:
            continue
        used = [value for value in op.makes if readers[value]] or list(op.makes[:1])
        each = sum(below[1:], below[0]) / len(used)
        for value in used:
            passing[value] = each
    return passing


def _concerned(save: Save, op: int, graph: Graph, ways: Ways, passing: Sequence[Tensor]) -> Tensor | None:
    """Return the part of each layer's gradient energy that is wrong if what the operator has saved is. Return ``None``
    for a tensor that only makes the gradient of a parameter by which it is multiplied element by element."""
    reads = graph.ops[op].reads
    if not reads:
        return passing[save.value]
    if save.need is not Need.PRODUCT or save.value not in reads:
        return torch.stack([passing[value] * ways[value, op] for value in reads]).sum(0)
    # A factor makes the other one's gradient, which is a sum if the other is smaller, and errors average out in it.
    others = [value for value in reads if value != save.value]
    if not others:
        return None
    size = max(1, graph.values[save.value].nbytes)
    sizes = ((value, min(1, graph.values[value].nbytes / size)) for value in others)
    return torch.stack([passing[value] * ways[value, op] * part for value, part in sizes]).sum(0)
