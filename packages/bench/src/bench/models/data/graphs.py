"""The graphs by name: published ones, one that is built in, and one that is generated.

A generated graph of ogbn-arxiv's size, for memory and time where that cannot be downloaded. Its accuracies say
nothing about ogbn-arxiv's.

Degrees follow a power law of exponent 2.5 (the model of Chung and Lu, PNAS 2002), two of three edges link nodes of one
class, and a node's features are its class's centre in noise, so that neither features nor edges alone tell it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from bench.errors import BenchError
from bench.models.data import downloaded_graphs
from bench.models.data.downloaded_graphs import DownloadRefused, raw_folder
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
    # PyG is imported where it is used: torch's compiler and transformers come with it, which takes seconds.
    from torch_geometric.utils import index_to_mask

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
    from torch_geometric.utils import to_undirected

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


DATASETS = ("auto", "cora", "citeseer", "digits", *downloaded_graphs.NAMES, NAME)

_NEIGHBOURS = 8
_TRAIN_PER_CLASS, _VALIDATION, _TEST = 20, 500, 1000  # Planetoid's sizes


def load(dataset: str, data_root: Path | None = None, tell: Callable[[str], None] = print) -> Graph:
    """The graph of that name.

    ``"auto"`` is Cora where it is at hand or can be downloaded, otherwise the built-in digits graph.

    Args:
        dataset: one of ``DATASETS``.
        data_root: folder with ``planetoid/Cora/raw`` in it, or ``Flickr``, ``Reddit``, ``Yelp``, ``ogbn_arxiv``;
            default: ``ACTCORE_DATA``, then torch-geometric's cache.
        tell: is given one line if a download was refused and the built-in graph is used.

    Raises:
        BenchError: the name is unknown, the folder does not exist, a file is missing or corrupted, or a library is not
            installed.
        DownloadRefused: the dataset was asked for by name, is not at hand and could not be downloaded.
    """
    if dataset not in DATASETS:
        raise BenchError(f"dataset must be one of {', '.join(DATASETS)}, got {dataset!r}")
    if dataset == "digits":
        return digits()
    if dataset == NAME:
        return graph()
    if dataset in downloaded_graphs.NAMES:
        return downloaded_graphs.load(dataset, data_root)
    if dataset == "citeseer":
        return planetoid("CiteSeer", raw_folder("CiteSeer", data_root))
    try:
        return planetoid("Cora", raw_folder("Cora", data_root))
    except DownloadRefused as refusal:
        if dataset == "cora":
            raise
        tell(f"The built-in digits graph is used: {refusal}.")
        return digits()


def planetoid(name: str, folder: Path) -> Graph:
    """A citation graph with Planetoid's public split: 20 training nodes a class, 500 for validation, 1,000 for test."""
    from torch_geometric.io import read_planetoid_data
    from torch_geometric.transforms import NormalizeFeatures

    data = NormalizeFeatures()(read_planetoid_data(str(folder), name))
    return Graph(name, "public split", data.x, data.edge_index, data.y, data.train_mask, data.val_mask, data.test_mask)


def digits() -> Graph:
    """The built-in graph: scikit-learn's 1,797 images of digits (8 x 8 pixels), each linked with its 8 nearest others.

    Links are symmetric; the split, of Planetoid's sizes, is always the same.
    """
    # Imported here: scikit-learn takes seconds, which each process of a cell would spend whatever graph it is for.
    from sklearn.datasets import load_digits
    from sklearn.neighbors import kneighbors_graph
    from torch_geometric.data import Data
    from torch_geometric.transforms import NormalizeFeatures
    from torch_geometric.utils import from_scipy_sparse_matrix, index_to_mask

    images = load_digits()
    links = kneighbors_graph(images.data, _NEIGHBOURS)
    edge_index, _ = from_scipy_sparse_matrix(links.maximum(links.T))
    y = torch.from_numpy(images.target).long()
    data = NormalizeFeatures()(Data(x=torch.from_numpy(images.data).float()))

    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    train = torch.cat([order[y[order] == digit][:_TRAIN_PER_CLASS] for digit in range(10)])
    rest = order[~index_to_mask(train, len(y))[order]]
    masks = [index_to_mask(part, len(y)) for part in (train, rest[:_VALIDATION], rest[_VALIDATION:][:_TEST])]
    return Graph("digits", "scikit-learn's digits, 8 nearest neighbours", data.x, edge_index, y, *masks)
