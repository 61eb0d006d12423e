"""Graph convolutions of PyG at any size, on a generated graph."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.networks import needs
from bench.systems.graph_layers import GraphLayers
from bench.systems.subject import Subject


@dataclass(frozen=True)
class Graph:
    """A GCN (Kipf and Welling, ICLR 2017) and its graph.

    Attributes:
        layers, hidden: of the network.
        nodes, edges: of the graph; edges are drawn uniformly.
        features: of a node.
        classes: of nodes.
    """

    layers: int
    hidden: int
    nodes: int
    edges: int
    features: int
    classes: int


def gcn(sizes: Graph) -> Subject:
    """The network, with batch norm and dropout 0.5 as GACT's benchmark has them.

    The normalised graph is one sparse matrix, made once: a layer multiplies with it, and holds no message of an edge.

    Raises:
        MissingLibrary: torch-geometric is not installed.
    """
    model = GraphLayers(
        needs("torch_geometric.nn").GCN(
            sizes.features,
            sizes.hidden,
            sizes.layers,
            sizes.classes,
            dropout=0.5,
            norm="batch_norm",
            normalize=False,  # the graph is
        )
    )
    edges, weights = needs("torch_geometric.nn.conv.gcn_conv").gcn_norm(
        torch.randint(sizes.nodes, (2, sizes.edges)), None, sizes.nodes
    )
    graph = needs("torch_geometric.utils").to_torch_csr_tensor(edges, weights, size=(sizes.nodes, sizes.nodes))
    x, y = torch.randn(sizes.nodes, sizes.features), torch.randint(sizes.classes, (sizes.nodes,))

    def loss(output: object) -> Tensor:
        assert isinstance(output, Tensor)
        return F.cross_entropy(output, y)

    what = f"GCN, {sizes.layers} layers of {sizes.hidden}, {sizes.nodes:,} nodes, {sizes.edges:,} edges"
    return Subject(model, (x, graph), loss, what, list(model.layers))
