"""The models: GCN, GraphSAGE, GAT and GCNII as in GACT's benchmark, of torch-geometric's layers.

Three layers of 256 hidden features with dropout of 0.5 after each activation, as there; GCNII as its authors have it
on Cora. Two things differ unless ``Recipe`` says otherwise. There is no batch normalisation: with it, a GCN reaches
76 % on Cora's public split (mean of 3 seeds), and 81 % without: 140 training nodes decide the statistics of all 2,708.
GAT has 4 heads of 64 features, because 256 is no multiple of GACT's 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from bench.errors import BenchError

HIDDEN = 256
LAYERS = 3
DROPOUT = 0.5
HEADS = 4
NORMS = ("none", "batch")
ADAPT_INTERVAL = 20  # steps; GACT's for its GNNs

# GCNII's on Cora (Chen et al., ICML 2020, table 6), but for its depth of 64: a quarter of it is as good within a point.
DEEP_HIDDEN, DEEP_LAYERS, DEEP_DROPOUT, ALPHA, THETA = 64, 16, 0.6, 0.1, 0.5


@dataclass(frozen=True)
class Recipe:
    """What of building and training can be chosen.

    Attributes:
        hidden, layers: widths and depth; ``None``: the model's own, 256 and 3, and of GCNII 64 and 16.
        heads: of GAT's hidden layers; each has ``hidden // heads`` features. GACT's has 3.
        norm: one of ``NORMS``, between a hidden convolution and its activation. GACT's networks have ``"batch"``.
        adapt_interval: steps from one adaptation of an adaptive level to the next.
        sample: nodes of the subgraphs to train on, at most; ``None`` trains on the whole graph.
    """

    hidden: int | None = None
    layers: int | None = None
    heads: int = HEADS
    norm: str = "none"
    adapt_interval: int = ADAPT_INTERVAL
    sample: int | None = None

    def words(self) -> dict[str, float | str]:
        """By name of the setting."""
        return {
            "layers": self.layers or LAYERS,
            "hidden": self.hidden or HIDDEN,
            "dropout": DROPOUT,
            "norm": self.norm,
            "GAT's heads": self.heads,
            "GCNII": f"{self.layers or DEEP_LAYERS} layers of {self.hidden or DEEP_HIDDEN}, dropout {DEEP_DROPOUT:g}",
            "adapt interval": self.adapt_interval,
            "sample": "none" if self.sample is None else f"{self.sample:,} nodes",
        }


DEFAULT = Recipe()

WEIGHT_DECAY = 5e-4
_DEEP_WEIGHT_DECAY = 0.01  # of GCNII's convolutions


class GraphNetwork(nn.Module):
    """Graph convolutions with an activation and dropout between them, layer by layer.

    Args:
        convolutions: modules called with features and edge index.
        activation: function of a tensor.
        norms: one for each convolution but the last.
    """

    def __init__(
        self, convolutions: list[nn.Module], activation: Callable[[Tensor], Tensor], norms: list[nn.Module]
    ) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(convolutions)
        self.norms = nn.ModuleList(norms)
        self.activation = activation

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """``Float[Tensor, "nodes features"] -> Float[Tensor, "nodes classes"]``, the logits."""
        x = first = self.enter(x)
        for place in range(len(self.convolutions)):
            x = self.layer(place, x, first, edge_index)
        return self.leave(x)

    def enter(self, x: Tensor) -> Tensor:
        """What the first layer is given."""
        return x

    def layer(self, place: int, x: Tensor, first: Tensor, edge_index: Tensor, *weight: Tensor) -> Tensor:
        """One layer.

        Args:
            place: of the layer.
            x: what the layer before it gave.
            first: what the first layer was given.
            edge_index: with both directions.
            weight: of each edge, for convolutions that shall not find it themselves.
        """
        x = self.convolutions[place](x, edge_index, *weight)
        if place == len(self.convolutions) - 1:
            return x
        if len(self.norms):
            x = self.norms[place](x)
        return F.dropout(self.activation(x), DROPOUT, self.training)

    def leave(self, x: Tensor) -> Tensor:
        """The logits, of what the last layer gave."""
        return x

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The parameters, with their weight decay."""
        return [{"params": list(self.parameters()), "weight_decay": WEIGHT_DECAY}]


class DeepNetwork(GraphNetwork):
    """GCNII: dense layers at both ends, and in each layer a part of what the first was given."""

    def __init__(
        self, features: int, hidden: int, classes: int, convolutions: list[nn.Module], norms: list[nn.Module]
    ) -> None:
        super().__init__(convolutions, F.relu, norms)
        self.first = nn.Linear(features, hidden)
        self.last = nn.Linear(hidden, classes)

    def enter(self, x: Tensor) -> Tensor:
        """The first dense layer."""
        return F.relu(self.first(F.dropout(x, DEEP_DROPOUT, self.training)))

    def layer(self, place: int, x: Tensor, first: Tensor, edge_index: Tensor, *weight: Tensor) -> Tensor:
        """One layer, see ``GraphNetwork``."""
        x = self.convolutions[place](F.dropout(x, DEEP_DROPOUT, self.training), first, edge_index, *weight)
        return F.relu(self.norms[place](x) if len(self.norms) else x)

    def leave(self, x: Tensor) -> Tensor:
        """The last dense layer."""
        logits: Tensor = self.last(F.dropout(x, DEEP_DROPOUT, self.training))
        return logits

    def parameter_groups(self) -> list[dict[str, Any]]:
        """As published: the convolutions decay faster."""
        dense = [*self.first.parameters(), *self.last.parameters()]
        known = {id(parameter) for parameter in dense}
        others = [parameter for parameter in self.parameters() if id(parameter) not in known]
        return [
            {"params": dense, "weight_decay": WEIGHT_DECAY},
            {"params": others, "weight_decay": _DEEP_WEIGHT_DECAY},
        ]


def gcn(features: int, classes: int, recipe: Recipe = DEFAULT) -> GraphNetwork:
    """Kipf and Welling (ICLR 2017). The normalised graph is computed once and cached, unless each step has another."""
    # PyG is imported where it is used: torch's compiler and transformers come with it, which takes seconds.
    from torch_geometric.nn import GCNConv

    sizes = _sizes(features, classes, recipe)
    convolutions = [GCNConv(size, out, cached=recipe.sample is None) for size, out in sizes]
    return GraphNetwork(convolutions, F.relu, _norms(sizes, recipe))


def sage(features: int, classes: int, recipe: Recipe = DEFAULT) -> GraphNetwork:
    """GraphSAGE with mean aggregation (Hamilton et al., NeurIPS 2017)."""
    from torch_geometric.nn import SAGEConv

    sizes = _sizes(features, classes, recipe)
    return GraphNetwork([SAGEConv(size, out) for size, out in sizes], F.relu, _norms(sizes, recipe))


def gat(features: int, classes: int, recipe: Recipe = DEFAULT) -> GraphNetwork:
    """Veličković et al. (ICLR 2018), with dropout of the attention coefficients, too; one head in the last layer.

    Raises:
        BenchError: there are more heads than hidden features.
    """
    from torch_geometric.nn import GATConv

    hidden = recipe.hidden or HIDDEN
    if recipe.heads > hidden:
        raise BenchError(f"--heads must be at most the hidden features, {hidden}, got {recipe.heads}; raise --hidden")
    whole = hidden // recipe.heads * recipe.heads
    sizes = _sizes(features, classes, recipe, whole)
    *inner, (last, out) = sizes
    convolutions = [GATConv(size, whole // recipe.heads, heads=recipe.heads, dropout=DROPOUT) for size, _ in inner]
    return GraphNetwork([*convolutions, GATConv(last, out, dropout=DROPOUT)], F.elu, _norms(sizes, recipe))


def gcnii(features: int, classes: int, recipe: Recipe = DEFAULT) -> GraphNetwork:
    """Chen et al. (ICML 2020), with the initial residual and identity mapping; the graph's norm is cached as in GCN."""
    from torch_geometric.nn import GCN2Conv

    hidden, layers = recipe.hidden or DEEP_HIDDEN, recipe.layers or DEEP_LAYERS
    norms = _norms([(hidden, hidden)] * (layers + 1), recipe)
    convolutions = [
        GCN2Conv(hidden, ALPHA, THETA, layer, cached=recipe.sample is None) for layer in range(1, layers + 1)
    ]
    return DeepNetwork(features, hidden, classes, convolutions, norms)


MODELS = MappingProxyType({"gcn": gcn, "sage": sage, "gat": gat, "gcnii": gcnii})
"""The models by the name that the command line knows: functions of the numbers of features and classes."""

NAMES = MappingProxyType({"gcn": "GCN", "sage": "GraphSAGE", "gat": "GAT", "gcnii": "GCNII"})
"""What tables and charts call them."""


def _sizes(features: int, classes: int, recipe: Recipe, hidden: int | None = None) -> list[tuple[int, int]]:
    widths = [features, *[hidden or recipe.hidden or HIDDEN] * ((recipe.layers or LAYERS) - 1), classes]
    return list(pairwise(widths))


def _norms(sizes: list[tuple[int, int]], recipe: Recipe) -> list[nn.Module]:
    """One after each layer but the last.

    Raises:
        BenchError: there is no such norm.
    """
    if recipe.norm not in NORMS:
        raise BenchError(f"norm must be one of {', '.join(NORMS)}, got {recipe.norm!r}")
    return [nn.BatchNorm1d(out) for _, out in sizes[:-1]] if recipe.norm == "batch" else []
