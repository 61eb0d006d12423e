"""The large graphs of GACT's benchmark, through the loaders of the libraries that have them.

Flickr, Reddit and Yelp (Zeng et al., ICLR 2020; Hamilton et al., NeurIPS 2017) come through torch-geometric, ogbn-arxiv
(Hu et al., NeurIPS 2020) through ``ogb``. Folders are laid out as these loaders have them, ``<data root>/Flickr/raw``
and ``<data root>/ogbn_arxiv/raw``; beside ``raw``, the loaders write ``processed``.
"""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric import get_home_dir
from torch_geometric.datasets import Flickr, Reddit, Yelp
from torch_geometric.utils import index_to_mask, remove_self_loops, to_undirected

from bench.errors import BenchError, MissingLibrary, reason
from bench.gnn.graph import Graph
from bench.gnn.planetoid import DownloadRefused, named_root

ARXIV = "ogbn-arxiv"
NAMES = ("flickr", "reddit", "yelp", ARXIV)

_LOADERS = {"flickr": Flickr, "reddit": Reddit, "yelp": Yelp}


def load(dataset: str, data_root: Path | None) -> Graph:
    """The graph of that name.

    Looked for in ``data_root`` or else in the folder that ``ACTCORE_DATA`` names, then in torch-geometric's own folder
    (``~/.cache/pyg``, or ``PYG_HOME``), into which it is downloaded if need be.

    Args:
        dataset: one of ``NAMES``.
        data_root: folder with ``Flickr``, ``Reddit``, ``Yelp`` or ``ogbn_arxiv`` in it.

    Raises:
        BenchError: the named folder does not exist, or what is at hand cannot be read.
        MissingLibrary: ``ogb`` is not installed.
        DownloadRefused: the graph is not at hand and could not be downloaded.
    """
    name = "ogbn_arxiv" if dataset == ARXIV else _LOADERS[dataset].__name__
    nodes = _arxiv_class() if dataset == ARXIV else None
    root = named_root(data_root)
    folder = root / name if root is not None and (root / name).is_dir() else Path(get_home_dir()) / name
    at_hand = folder.exists()
    try:
        return _pyg(dataset, folder) if nodes is None else _arxiv(nodes, folder)
    except Exception as error:  # each loader, and what it downloads with, has errors of its own
        if at_hand:
            raise BenchError(
                f"{folder} cannot be read ({reason(error)}); delete it to download it anew, or name another folder "
                "with --data-root"
            ) from error
        shutil.rmtree(folder, ignore_errors=True)  # a part of a download would be taken for all of it
        raise DownloadRefused(
            f"{name} is not at hand and could not be downloaded ({reason(error)}); name a folder that has {name}/ in "
            "it with --data-root or ACTCORE_DATA, or use --dataset generated-arxiv, which is as large as ogbn-arxiv"
        ) from error


def _pyg(dataset: str, folder: Path) -> Graph:
    loader = _LOADERS[dataset]
    data = loader(str(folder))[0]
    edges, _ = remove_self_loops(data.edge_index)
    # Yelp has a column of zeros and ones for each class.
    y = data.y.float() if data.y.dim() == 2 else data.y
    return Graph(loader.__name__, "its own split", data.x, edges, y, data.train_mask, data.val_mask, data.test_mask)


def _arxiv_class() -> Any:
    try:
        return importlib.import_module("ogb.nodeproppred").NodePropPredDataset
    except ImportError as error:
        raise MissingLibrary(
            f"ogbn-arxiv needs ogb, which cannot be imported ({error}); pip install actcore-bench[graphs], or use "
            "--dataset generated-arxiv"
        ) from error


def _arxiv(nodes: Any, folder: Path) -> Graph:
    """The citations in both directions, as usual, and the split by year of ``ogb``."""
    # ogb keeps arrays of NumPy in a file that torch.load reads; torch refuses them unless told that they are safe.
    with torch.serialization.safe_globals(_numpy_globals()):
        dataset = nodes(name=ARXIV, root=str(folder.parent))
        split = dataset.get_idx_split()
    graph, labels = dataset[0]
    edges, _ = remove_self_loops(to_undirected(torch.from_numpy(graph["edge_index"])))
    x = torch.from_numpy(graph["node_feat"]).float()

    def mask(part: str) -> Tensor:
        found: Tensor = index_to_mask(torch.as_tensor(split[part]), len(x))
        return found

    y = torch.from_numpy(labels).flatten().long()
    return Graph(ARXIV, "its own split", x, edges, y, mask("train"), mask("valid"), mask("test"))


def _numpy_globals() -> list[Any]:
    """What an array of NumPy is pickled with."""
    pickled = np.zeros(1).__reduce__()
    types = [type(np.dtype(name)) for name in ("int64", "float32", "float64")]
    return [pickled[0], np.ndarray, np.dtype, *types]
