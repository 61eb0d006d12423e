"""``Graph``, subgraphs of it to train on, and evaluation of large ones.

Large graphs in parts: subgraphs to train on, and evaluation of the whole graph, block by block.

Subgraphs are made of random walks, after GraphSAINT (Zeng et al., ICLR 2020): walks of ``LENGTH`` steps begin at
training nodes, and all edges between the nodes on them belong to the subgraph. GraphSAINT's weights of losses and edges
are left out: every run of a comparison draws the same subgraphs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.errors import BenchError
from bench.models.graph_networks import GraphNetwork


@dataclass(frozen=True)
class Graph:
    """A graph for node classification.

    Attributes:
        name: what it is called in tables: ``"Cora"``, ``"CiteSeer"``, ``"digits"``.
        origin: where the data came from, in words.
        x: ``Float32[Tensor, "nodes features"]``.
        edge_index: ``Int64[Tensor, "2 edges"]``, both directions, no self-loops.
        y: ``Int64[Tensor, "nodes"]``, the classes; ``Float32[Tensor, "nodes classes"]`` where a node may have several.
        train, validation, test: ``Bool[Tensor, "nodes"]``.
    """

    name: str
    origin: str
    x: Tensor
    edge_index: Tensor
    y: Tensor
    train: Tensor
    validation: Tensor
    test: Tensor

    @property
    def several(self) -> bool:
        """Whether a node may have several classes."""
        return self.y.dim() == 2

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self.y.shape[1] if self.several else int(self.y.max()) + 1

    @property
    def measure(self) -> str:
        """What ``score`` is."""
        return "micro-F1" if self.several else "accuracy"

    def to(self, device: torch.device) -> Graph:
        """The same graph on a device."""
        tensors = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return Graph(name=self.name, origin=self.origin, **tensors)

    def loss(self, logits: Tensor) -> Tensor:
        """The mean over the training nodes: cross-entropy, or where a node may have several classes that of each."""
        function = F.binary_cross_entropy_with_logits if self.several else F.cross_entropy
        return function(logits[self.train], self.y[self.train])

    def score(self, logits: Tensor, nodes: Tensor) -> float:
        """Of some nodes, in percent: the accuracy, or where a node may have several classes micro-F1.

        Args:
            logits: ``Float[Tensor, "nodes classes"]``.
            nodes: ``Bool[Tensor, "nodes"]``, which; at least one.
        """
        if not self.several:
            return 100 * int((logits.argmax(1) == self.y)[nodes].sum()) / int(nodes.sum())
        found, true = logits[nodes] > 0, self.y[nodes] > 0
        both, either = int((found & true).sum()), int(found.sum()) + int(true.sum())
        return 200 * both / either if either else 100.0

    def __str__(self) -> str:
        return (
            f"{self.name} ({len(self.x):,} nodes, {self.edge_index.shape[1]:,} edges, {self.x.shape[1]:,} features, "
            f"{self.classes} classes; {self.origin})"
        )


LENGTH = 2

BLOCK = 1 << 22
"""Edges that evaluation looks at together: 4 GiB of messages, of 256 features."""


class Walks:
    """Draws subgraphs, with torch's generator of the graph's device.

    Args:
        graph: on the device to train on.
        nodes: of a subgraph, at most.

    Raises:
        BenchError: the graph has no more nodes than that.
    """

    def __init__(self, graph: Graph, nodes: int) -> None:
        if not LENGTH < nodes < len(graph.x):
            raise BenchError(
                f"--sample must be from {LENGTH + 1} nodes to fewer than {graph.name}'s {len(graph.x):,}, got {nodes:,}"
                "; leave it out to train on the whole graph"
            )
        self._graph = graph
        self._count = nodes // (LENGTH + 1)
        self._roots = graph.train.nonzero().flatten()
        row, self._neighbours = _sorted(graph.edge_index)
        self._degrees = row.bincount(minlength=len(graph.x))
        self._starts = self._degrees.cumsum(0) - self._degrees

    @property
    def steps(self) -> int:
        """Subgraphs that together have about as many nodes as the graph."""
        return max(1, round(len(self._graph.x) / (self._count * (LENGTH + 1))))

    def draw(self) -> Graph:
        """The next subgraph. Some of its nodes are training nodes."""
        device = self._roots.device
        at = self._roots[torch.randint(len(self._roots), (self._count,), device=device)]
        visited = [at]
        for _ in range(LENGTH):
            degrees = self._degrees[at]
            steps = (torch.rand(self._count, dtype=torch.float64, device=device) * degrees).long()
            # A node without neighbours stays where it is.
            places = (self._starts[at] + steps).clamp(max=len(self._neighbours) - 1)
            at = torch.where(degrees > 0, self._neighbours[places], at)
            visited.append(at)
        return induced(self._graph, torch.cat(visited).unique())


def induced(graph: Graph, nodes: Tensor) -> Graph:
    """The subgraph of some nodes with all edges between them; ``nodes`` are ``Int64[Tensor, "some"]``, none twice."""
    # PyG is imported where it is used: torch's compiler and transformers come with it, which takes seconds.
    from torch_geometric.utils import subgraph

    edges, _ = subgraph(nodes, graph.edge_index, relabel_nodes=True, num_nodes=len(graph.x))
    parts = {name: getattr(graph, name)[nodes] for name in ("x", "y", "train", "validation", "test")}
    return replace(graph, edge_index=edges, **parts)


@torch.no_grad()
def evaluated(network: GraphNetwork, graph: Graph, block: int = BLOCK) -> Tensor:
    """The logits of all nodes of a network in ``eval()``; where the graph has more than ``block`` edges, layer by
    layer, each for as many nodes at a time as have so many edges."""
    from torch_geometric.nn import GCN2Conv, GCNConv
    from torch_geometric.nn.conv.gcn_conv import gcn_norm

    if graph.edge_index.shape[1] <= block:
        logits: Tensor = network(graph.x, graph.edge_index)
        return logits
    edges, weights = graph.edge_index, None
    weighted = [module for module in network.modules() if isinstance(module, GCNConv | GCN2Conv)]
    if weighted:  # a node's weights follow from all edges of its neighbours, which no block has
        edges, weights = gcn_norm(edges, num_nodes=len(graph.x), dtype=graph.x.dtype)
    blocks = _blocks(edges, weights, len(graph.x), block)
    for module in weighted:
        module.normalize = False
    try:
        x = first = network.enter(graph.x)
        for place in range(len(network.convolutions)):
            x = torch.cat([part.of(network, place, x, first) for part in blocks])
        return network.leave(x)
    finally:
        for module in weighted:
            module.normalize = True


class _Block:
    """Consecutive nodes, with the edges that end there and the nodes where these begin."""

    def __init__(self, nodes: Tensor, edges: Tensor, weights: Tensor | None) -> None:
        self._all, places = torch.cat([nodes, edges[0]]).unique(return_inverse=True)
        self._own = places[: len(nodes)]
        ends = self._own[edges[1] - nodes[0]]
        self._edges = torch.stack([places[len(nodes) :], ends])
        self._weights = () if weights is None else (weights,)

    def of(self, network: GraphNetwork, place: int, x: Tensor, first: Tensor) -> Tensor:
        """What a layer gives for the block's nodes."""
        return network.layer(place, x[self._all], first[self._all], self._edges, *self._weights)[self._own]


def _blocks(edges: Tensor, weights: Tensor | None, nodes: int, block: int) -> list[_Block]:
    order = edges[1].argsort(stable=True)
    edges = edges[:, order]
    weights = None if weights is None else weights[order]
    ends = edges[1].bincount(minlength=nodes).cumsum(0)
    made, begin, seen = [], 0, 0
    while begin < nodes:
        # At least one node, however many edges it has.
        end = max(begin + 1, int(torch.searchsorted(ends, seen + block, right=True)))
        last = int(ends[end - 1])
        own = torch.arange(begin, end, device=edges.device)
        made.append(_Block(own, edges[:, seen:last], None if weights is None else weights[seen:last]))
        begin, seen = end, last
    return made


def _sorted(edges: Tensor) -> tuple[Tensor, Tensor]:
    """Both ends of the edges, by where they begin."""
    order = edges[0].argsort(stable=True)
    return edges[0][order], edges[1][order]
