"""The models: GCN, GraphSAGE and GAT as in GACT's benchmark, of torch-geometric's layers.

Three layers of 256 hidden features with dropout of 0.5 after each activation, as there. Two things differ. There is no
batch normalisation: with it, a GCN reaches 76 % on Cora's public split, and 82 % without (mean of 3 seeds; 140 training
nodes decide the statistics of all 2,708). GAT has 4 heads of 64 features, because 256 is no multiple of GACT's 3.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import MappingProxyType

import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

HIDDEN = 256
LAYERS = 3
DROPOUT = 0.5
HEADS = 4


class GraphNetwork(nn.Module):
    """Graph convolutions with an activation and dropout between them.

    Args:
        convolutions: modules called with features and edge index.
        activation: function of a tensor.
    """

    def __init__(self, convolutions: list[nn.Module], activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(convolutions)
        self.activation = activation

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """``Float[Tensor, "nodes features"] -> Float[Tensor, "nodes classes"]``, the logits."""
        *hidden, last = self.convolutions
        for convolution in hidden:
            x = F.dropout(self.activation(convolution(x, edge_index)), DROPOUT, self.training)
        logits: Tensor = last(x, edge_index)
        return logits


def gcn(features: int, classes: int) -> GraphNetwork:
    """Kipf and Welling (ICLR 2017). The normalised graph is computed once and cached, since it never changes."""
    sizes = _sizes(features, classes)
    return GraphNetwork([GCNConv(size, out, cached=True) for size, out in sizes], F.relu)


def sage(features: int, classes: int) -> GraphNetwork:
    """GraphSAGE with mean aggregation (Hamilton et al., NeurIPS 2017)."""
    return GraphNetwork([SAGEConv(size, out) for size, out in _sizes(features, classes)], F.relu)


def gat(features: int, classes: int) -> GraphNetwork:
    """Veličković et al. (ICLR 2018), with dropout of the attention coefficients, too; one head in the last layer."""
    *hidden, last = _sizes(features, classes)
    convolutions = [GATConv(size, out // HEADS, heads=HEADS, dropout=DROPOUT) for size, out in hidden]
    return GraphNetwork([*convolutions, GATConv(*last, heads=1, dropout=DROPOUT)], F.elu)


MODELS = MappingProxyType({"gcn": gcn, "sage": sage, "gat": gat})
"""The models by the name that the command line knows: functions of the numbers of features and classes."""


def _sizes(features: int, classes: int) -> list[tuple[int, int]]:
    widths = [features, *[HIDDEN] * (LAYERS - 1), classes]
    return list(pairwise(widths))
