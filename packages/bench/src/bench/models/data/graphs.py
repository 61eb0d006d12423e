"""The graphs that the benchmark trains on, by name: published ones, one that is built in, and one that is generated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import kneighbors_graph
from torch_geometric.data import Data
from torch_geometric.io import read_planetoid_data
from torch_geometric.transforms import NormalizeFeatures
from torch_geometric.utils import from_scipy_sparse_matrix, index_to_mask

from bench.errors import BenchError
from bench.models.data import downloaded_graphs as downloaded
from bench.models.data import generated_graph as generated
from bench.models.data.graph import Graph
from bench.models.data.planetoid import DownloadRefused, raw_folder

DATASETS = ("auto", "cora", "citeseer", "digits", *downloaded.NAMES, generated.NAME)

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
    if dataset == generated.NAME:
        return generated.graph()
    if dataset in downloaded.NAMES:
        return downloaded.load(dataset, data_root)
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
    data = NormalizeFeatures()(read_planetoid_data(str(folder), name))
    return Graph(name, "public split", data.x, data.edge_index, data.y, data.train_mask, data.val_mask, data.test_mask)


def digits() -> Graph:
    """The built-in graph: scikit-learn's 1,797 images of digits (8 x 8 pixels), each linked with its 8 nearest others.

    Links are symmetric; the split, of Planetoid's sizes, is always the same.
    """
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
