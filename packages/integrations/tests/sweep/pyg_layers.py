"""PyTorch Geometric's layers: each between two linear ones, on a random graph with ten edges a node.

The tensors of its edges are then ten times as large as those of its nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .case import Case

NODES, EDGES = 500, 5000
FEATURES, WIDTH, CLASSES = 32, 64, 7
EDGE_FEATURES, RELATIONS = 8, 3


class Network(nn.Module):
    """One layer, with linear layers around it.

    Args:
        layer: from ``WIDTH`` features a node to ``WIDTH``.
        call: calls it with the nodes' features.
    """

    def __init__(self, layer: nn.Module, call: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.before = nn.Linear(FEATURES, WIDTH)
        self.layer = layer
        self.after = nn.Linear(WIDTH, CLASSES)
        self._call = call

    def forward(self, x: Tensor) -> Tensor:
        """``Float[Tensor, "nodes features"] -> Float[Tensor, "nodes classes"]``, the logits."""
        hidden = F.relu(self.before(x))
        logits: Tensor = self.after(F.relu(self._call(self.layer, hidden)))
        return logits


class Graph:
    """A random graph, whose edges have features, weights and a type.

    Attributes:
        index: int64 ``[2, EDGES]``, no node without an edge to it.
        features: float32 ``[EDGES, EDGE_FEATURES]``.
        kinds: int64 ``[EDGES]``, from 0 to ``RELATIONS - 1``.
    """

    def __init__(self) -> None:
        targets = torch.arange(EDGES) % NODES
        self.index = torch.stack([torch.randint(NODES, (EDGES,)), targets])
        self.features = torch.randn(EDGES, EDGE_FEATURES)
        self.kinds = torch.randint(RELATIONS, (EDGES,))


Made = tuple[nn.Module, Callable[[Any, Tensor], Tensor]]


def _plain(kind: str, graph: Graph, *sizes: Any, **options: Any) -> Made:
    """A layer that takes features and edges."""
    return getattr(import_module("torch_geometric.nn"), kind)(*sizes, **options), lambda layer, x: layer(x, graph.index)


def _of_network(kind: str, inputs: int, graph: Graph) -> Made:
    """A layer around a small network, of the features of one node or of two."""
    network = nn.Sequential(nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    return _plain(kind, graph, network)


def _with_features(kind: str, graph: Graph, *sizes: Any, **options: Any) -> Made:
    """A layer that takes the edges' features, too."""
    layer = getattr(import_module("torch_geometric.nn"), kind)(*sizes, **options)
    return layer, lambda layer, x: layer(x, graph.index, graph.features)


def _nn(graph: Graph) -> Made:
    width = 16  # each edge has a matrix of its own, of as many times WIDTH
    network = nn.Sequential(nn.Linear(EDGE_FEATURES, 16), nn.ReLU(), nn.Linear(16, WIDTH * width))
    layer = nn.ModuleList([import_module("torch_geometric.nn").NNConv(WIDTH, width, network), nn.Linear(width, WIDTH)])
    return layer, lambda layers, x: layers[1](layers[0](x, graph.index, graph.features))


def _pna(graph: Graph) -> Made:
    degrees = torch.bincount(torch.bincount(graph.index[1], minlength=NODES))
    return _plain(
        "PNAConv",
        graph,
        WIDTH,
        WIDTH,
        aggregators=["mean", "min", "max", "std"],
        scalers=["identity", "amplification", "attenuation"],
        deg=degrees,
    )


def _rgcn(graph: Graph) -> Made:
    layer = import_module("torch_geometric.nn").RGCNConv(WIDTH, WIDTH, RELATIONS)
    return layer, lambda layer, x: layer(x, graph.index, graph.kinds)


def _gcn2(graph: Graph) -> Made:
    layer = import_module("torch_geometric.nn").GCN2Conv(WIDTH, alpha=0.1)
    return layer, lambda layer, x: layer(x, x, graph.index)


def _halves(x: Tensor) -> dict[str, Tensor]:
    """The nodes as two kinds."""
    return {"paper": x[: NODES // 2], "author": x[NODES // 2 :]}


def _hetero_edges(graph: Graph) -> dict[tuple[str, str, str], Tensor]:
    edges = graph.index % (NODES // 2)
    half = EDGES // 2
    return {("author", "writes", "paper"): edges[:, :half], ("paper", "cites", "paper"): edges[:, half:]} | {
        ("paper", "written by", "author"): edges[:, :half].flip(0)
    }


def _joined(found: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([found["paper"], found["author"]])


def _hetero(graph: Graph) -> Made:
    geometric = import_module("torch_geometric.nn")
    edges = _hetero_edges(graph)
    layer = geometric.HeteroConv(
        {
            ("author", "writes", "paper"): geometric.GATConv((WIDTH, WIDTH), WIDTH, add_self_loops=False),
            ("paper", "cites", "paper"): geometric.GCNConv(WIDTH, WIDTH),
            ("paper", "written by", "author"): geometric.SAGEConv((WIDTH, WIDTH), WIDTH),
        }
    )
    return layer, lambda layer, x: _joined(layer(_halves(x), edges))


def _hgt(graph: Graph) -> Made:
    edges = _hetero_edges(graph)
    layer = import_module("torch_geometric.nn").HGTConv(WIDTH, WIDTH, (["paper", "author"], list(edges)), heads=4)
    return layer, lambda layer, x: _joined(layer(_halves(x), edges))


_LAYERS: Mapping[str, tuple[str, Callable[[Graph], Made]]] = {
    "GCNConv": ("spectral", lambda graph: _plain("GCNConv", graph, WIDTH, WIDTH)),
    "ChebConv": ("spectral", lambda graph: _plain("ChebConv", graph, WIDTH, WIDTH, K=3)),
    "ARMAConv": ("spectral", lambda graph: _plain("ARMAConv", graph, WIDTH, WIDTH, num_stacks=2, num_layers=2)),
    "TAGConv": ("spectral", lambda graph: _plain("TAGConv", graph, WIDTH, WIDTH)),
    "SGConv": ("spectral", lambda graph: _plain("SGConv", graph, WIDTH, WIDTH, K=2)),
    "GCN2Conv": ("spectral", _gcn2),
    "APPNP": ("propagation", lambda graph: _plain("APPNP", graph, K=5, alpha=0.1)),
    "SAGEConv": ("messages", lambda graph: _plain("SAGEConv", graph, WIDTH, WIDTH)),
    "GraphConv": ("messages", lambda graph: _plain("GraphConv", graph, WIDTH, WIDTH)),
    "GINConv": ("messages", partial(_of_network, "GINConv", WIDTH)),
    "EdgeConv": ("messages", partial(_of_network, "EdgeConv", 2 * WIDTH)),
    "PNAConv": ("several aggregations", _pna),
    "GENConv": ("softmax aggregation", lambda graph: _plain("GENConv", graph, WIDTH, WIDTH, learn_t=True)),
    "ResGatedGraphConv": ("gates", lambda graph: _plain("ResGatedGraphConv", graph, WIDTH, WIDTH)),
    "CGConv": ("gates", lambda graph: _with_features("CGConv", graph, WIDTH, dim=EDGE_FEATURES)),
    "NNConv": ("edge networks", _nn),
    "GATConv": ("attention", lambda graph: _plain("GATConv", graph, WIDTH, WIDTH // 4, heads=4, dropout=0.1)),
    "GATv2Conv": ("attention", lambda graph: _plain("GATv2Conv", graph, WIDTH, WIDTH // 4, heads=4, dropout=0.1)),
    "TransformerConv": (
        "attention",
        lambda graph: _with_features(
            "TransformerConv", graph, WIDTH, WIDTH // 4, heads=4, dropout=0.1, edge_dim=EDGE_FEATURES
        ),
    ),
    "RGCNConv": ("relations", _rgcn),
    "HeteroConv": ("heterogeneous", _hetero),
    "HGTConv": ("heterogeneous", _hgt),
}


def entries() -> Iterator[tuple[str, str, Callable[[], Case]]]:
    """Family, name and maker of each."""
    for name, (family, make) in _LAYERS.items():
        yield family, name, partial(_case, make)


def _case(make: Callable[[Graph], Made]) -> Case:
    import_module("torch_geometric.nn")
    model = Network(*make(Graph()))
    x, y = torch.randn(NODES, FEATURES), torch.randint(CLASSES, (NODES,))
    return Case(model.train(), lambda: F.cross_entropy(model(x), y), f"{NODES:,} nodes, {EDGES:,} edges")
