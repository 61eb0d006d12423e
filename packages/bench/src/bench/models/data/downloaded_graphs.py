"""The large graphs of GACT's benchmark, through the loaders of the libraries that have them.

Flickr, Reddit and Yelp (Zeng et al., ICLR 2020; Hamilton et al., NeurIPS 2017) come through torch-geometric; ``ogb``
downloads ogbn-arxiv (Hu et al., NeurIPS 2020). Folders are laid out as they have them, ``<data root>/Flickr/raw`` and
``<data root>/ogbn_arxiv/raw``; beside ``raw``, they write ``processed``, which is a pickle: only what torch
deems harmless is ever loaded of one.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_geometric import get_home_dir
from torch_geometric.datasets import Flickr, Reddit, Yelp
from torch_geometric.utils import index_to_mask, remove_self_loops, to_undirected

from bench.errors import BenchError, MissingLibrary, reason
from bench.models.data.graph import Graph
from bench.models.data.planetoid import DownloadRefused, named_root

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
        MissingLibrary: ogbn-arxiv is not at hand, and ``ogb`` is not installed.
        DownloadRefused: the graph is not at hand and could not be downloaded.
    """
    name = "ogbn_arxiv" if dataset == ARXIV else _LOADERS[dataset].__name__
    root = named_root(data_root)
    folder = root / name if root is not None and (root / name).is_dir() else Path(get_home_dir()) / name
    at_hand = folder.exists()
    try:
        if dataset != ARXIV:
            return _pyg(dataset, folder)
        if not at_hand:
            _download_arxiv(folder)
        return _arxiv(folder)
    except MissingLibrary:
        raise
    except KeyboardInterrupt:
        if not at_hand:
            shutil.rmtree(folder, ignore_errors=True)
        raise
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
    with _harmless_pickles():
        data = loader(str(folder))[0]
    edges, _ = remove_self_loops(data.edge_index)
    # Yelp has a column of zeros and ones for each class.
    y = data.y.float() if data.y.dim() == 2 else data.y
    return Graph(loader.__name__, "its own split", data.x, edges, y, data.train_mask, data.val_mask, data.test_mask)


@contextlib.contextmanager
def _harmless_pickles() -> Iterator[None]:
    """``torch.load`` refuses what could run code; torch-geometric asks for it where the harmless way has failed."""
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _download_arxiv(folder: Path) -> None:
    try:
        nodes = importlib.import_module("ogb.nodeproppred")
    except ImportError as error:
        raise MissingLibrary(
            f"ogbn-arxiv is not at hand, and ogb, which downloads it, cannot be imported ({error}); pip install "
            "actcore-bench[graphs], or use --dataset generated-arxiv"
        ) from error
    with contextlib.redirect_stdout(sys.stderr):
        nodes.NodePropPredDataset(name=ARXIV, root=str(folder.parent))


def _arxiv(folder: Path) -> Graph:
    """The citations in both directions, as usual, and the split by year.

    The tables that ``ogb`` unpacks are read, not its processed form: that is a pickle, which torch refuses to load.
    """

    def table(name: str, dtype: type[np.generic] = np.int64) -> Tensor:
        return torch.from_numpy(np.loadtxt(folder / f"{name}.csv.gz", delimiter=",", dtype=dtype, ndmin=2))

    x, y = table("raw/node-feat", np.float32), table("raw/node-label").flatten()
    edges, _ = remove_self_loops(to_undirected(table("raw/edge").T.contiguous(), num_nodes=len(x)))
    parts = (index_to_mask(table(f"split/time/{part}").flatten(), len(x)) for part in ("train", "valid", "test"))
    return Graph(ARXIV, "split by year", x, edges, y, *parts)
