"""A generated graph of ogbn-arxiv's size, for memory and time where that cannot be downloaded. Its accuracies say
nothing about ogbn-arxiv's.

Degrees follow a power law of exponent 2.5 (the model of Chung and Lu, PNAS 2002), two of three edges link nodes of one
class, and a node's features are its class's centre in noise, so that neither features nor edges alone tell it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.utils import index_to_mask, to_undirected

from bench.models.data.graph import Graph

NAME = "generated-arxiv"
NODES, EDGES, FEATURES, CLASSES = 169_343, 1_166_243, 128, 40  # ogbn-arxiv's, each edge counted once
TRAIN, VALIDATION = 90_941, 29_799  # ogbn-arxiv's; the rest is for test

_EXPONENT = 2.5
_SAME_CLASS = 2 / 3  # of the edges; 0.65 in ogbn-arxiv
_CENTRE = 0.25  # standard deviation of the classes' centres, where the noise has 1


def graph(nodes: int = NODES, edges: int = EDGES, seed: int = 0) -> Graph:
    """The graph, always the same.

    Args:
        nodes: how many; the split is in proportion.
        edges: how many, each counted once; there are as many in either direction. No two are the same.
        seed: another graph.
    """
    generator = torch.Generator().manual_seed(seed)
    shares = 1 / torch.arange(1, CLASSES + 1).sqrt()  # some classes are larger than others
    y = torch.multinomial(shares, nodes, replacement=True, generator=generator)
    centres = _CENTRE * torch.randn(CLASSES, FEATURES, generator=generator)
    x = centres[y] + torch.randn(nodes, FEATURES, generator=generator)
    order = torch.randperm(nodes, generator=generator)
    train, validation = round(nodes * TRAIN / NODES), round(nodes * VALIDATION / NODES)
    parts = order.split([train, validation, nodes - train - validation])
    masks = [index_to_mask(part, nodes) for part in parts]
    return Graph(NAME, "generated, of ogbn-arxiv's size and shape", x, _edges(y, edges, generator), y, *masks)


def _edges(y: Tensor, edges: int, generator: torch.Generator) -> Tensor:
    """Distinct pairs of nodes, both ways."""
    nodes = len(y)
    places = torch.randperm(nodes, generator=generator) + 1
    weights = places.double() ** (-1 / (_EXPONENT - 1))
    by_class = y.argsort(stable=True)
    cumulated = weights[by_class].cumsum(0)
    ends = cumulated[y.bincount(minlength=CLASSES).cumsum(0) - 1]
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])
    keys = torch.empty(0, dtype=torch.int64)
    while len(keys) < edges:
        count = edges + edges // 4
        source = by_class[_draw(cumulated, torch.zeros(count), cumulated[-1].expand(count), generator)]
        same = torch.rand(count, generator=generator) < _SAME_CLASS
        low = torch.where(same, starts[y[source]], 0.0)
        high = torch.where(same, ends[y[source]], cumulated[-1])
        target = by_class[_draw(cumulated, low, high, generator)]
        less, more = torch.minimum(source, target), torch.maximum(source, target)
        keys = torch.cat([keys, (less * nodes + more)[less != more]]).unique()
    kept = keys[torch.randperm(len(keys), generator=generator)[:edges]]
    both: Tensor = to_undirected(torch.stack([kept // nodes, kept % nodes]), num_nodes=nodes)
    return both


def _draw(cumulated: Tensor, low: Tensor, high: Tensor, generator: torch.Generator) -> Tensor:
    """Places, each as likely as its weight is large, between two sums of weights."""
    at = low + torch.rand(len(low), dtype=torch.float64, generator=generator) * (high - low)
    return torch.searchsorted(cumulated, at, right=True).clamp(max=len(cumulated) - 1)
