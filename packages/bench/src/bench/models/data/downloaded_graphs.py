"""Graphs of GACT's benchmark from files at hand, or downloaded.

Planetoid: the raw files of the citation graphs (Yang et al., ICML 2016): where they are, and whether they are whole.

The folder is laid out as torch-geometric's ``Planetoid`` loader expects, ``<data root>/planetoid/Cora/raw/ind.cora.x``,
and only read: torch-geometric's own reader takes the raw files, so that nothing need be written beside them. They are
pickles, which can run code when they are loaded; only files with the published contents ever are.

The large graphs of GACT's benchmark, through the loaders of the libraries that have them.

Flickr, Reddit and Yelp (Zeng et al., ICLR 2020; Hamilton et al., NeurIPS 2017) come through torch-geometric; ``ogb``
downloads ogbn-arxiv (Hu et al., NeurIPS 2020). Folders are laid out as they have them, ``<data root>/Flickr/raw`` and
``<data root>/ogbn_arxiv/raw``; beside ``raw``, they write ``processed``, which is a pickle: only what torch
deems harmless is ever loaded of one.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bench.errors import BenchError, MissingLibrary, reason
from bench.models.data.graph import Graph

_COMMIT = "af6abf468a772cc055bec88c52e4d6f51b7c37e3"  # the latest, of 2017; torch-geometric downloads the same files
_URL = f"https://raw.githubusercontent.com/kimiyoung/planetoid/{_COMMIT}/data"
_TIMEOUT = 20.0  # seconds without an answer

_SHA256 = {
    "Cora": {
        "x": "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
        "tx": "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
        "allx": "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
        "y": "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
        "ty": "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
        "ally": "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
        "graph": "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
        "test.index": "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
    },
    "CiteSeer": {
        "x": "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
        "tx": "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
        "allx": "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
        "y": "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
        "ty": "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
        "ally": "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
        "graph": "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
        "test.index": "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
    },
}


class DownloadRefused(BenchError):
    """The files are not at hand and could not be downloaded."""


def raw_folder(name: str, data_root: Path | None) -> Path:
    """The folder with a dataset's raw files, all of them there and whole.

    Looked for in ``data_root`` or else in the folder that ``ACTCORE_DATA`` names, then in torch-geometric's own folder
    (``~/.cache/pyg``, or ``PYG_HOME``), into which they are downloaded if need be. The first two are never written to.

    Args:
        name: ``"Cora"`` or ``"CiteSeer"``.
        data_root: the folder with ``planetoid/`` in it.

    Raises:
        BenchError: the named folder does not exist, or a file is missing or not what was published.
        DownloadRefused: the files are nowhere, and the download failed.
    """
    # PyG is imported where it is used: torch's compiler and transformers come with it, which takes seconds.
    from torch_geometric import get_home_dir

    root = named_root(data_root)
    if root is not None and (folder := _raw(root, name)).is_dir():
        _check(folder, name)
        return folder
    folder = _raw(Path(get_home_dir()), name)
    if not all((folder / file).is_file() for file in _files(name)):
        _download(folder, name)
    _check(folder, name)
    return folder


def named_root(data_root: Path | None) -> Path | None:
    """The folder that the user named, on the command line or in the environment.

    Raises:
        BenchError: there is no such folder.
    """
    if data_root is not None:
        root, named_by = data_root, "--data-root"
    elif value := os.environ.get("ACTCORE_DATA"):
        root, named_by = Path(value), "ACTCORE_DATA"
    else:
        return None
    if not root.is_dir():
        raise BenchError(f"{named_by} must name a folder with planetoid/Cora/raw in it; there is no folder {root}")
    return root


def _raw(root: Path, name: str) -> Path:
    return root / "planetoid" / name / "raw"


def _files(name: str) -> dict[str, str]:
    """File names and their SHA-256."""
    return {f"ind.{name.lower()}.{part}": digest for part, digest in _SHA256[name].items()}


def _check(folder: Path, name: str) -> None:
    for file, digest in _files(name).items():
        try:
            content = (folder / file).read_bytes()
        except OSError as error:
            raise BenchError(
                f"{name} is incomplete: {folder / file} cannot be read ({error.strerror}); "
                "restore the file, or name another folder with --data-root"
            ) from error
        if hashlib.sha256(content).hexdigest() != digest:
            raise BenchError(
                f"{folder / file} is corrupted: its {len(content)} bytes are not what Planetoid published (SHA-256 "
                "differs); delete the file's folder and run again to download it, or name another with --data-root"
            )


def _download(folder: Path, name: str) -> None:
    for file, digest in _files(name).items():
        target = folder / file
        if target.is_file():
            continue
        url = f"{_URL}/{file}"
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT) as response:
                content = response.read()
            if hashlib.sha256(content).hexdigest() != digest:  # such as a login page of the network
                raise OSError("the download is not the file that Planetoid published")
            folder.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(f"{file}.{os.getpid()}.part")
            partial.write_bytes(content)
            partial.replace(target)  # at once, so that an interrupted download leaves no half file
        except (OSError, HTTPException) as error:  # URLError and timeouts are OSErrors
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise DownloadRefused(
                f"{name} was not found and could not be downloaded from {url} ({reason}); "
                "name a folder that has planetoid/ in it with --data-root or ACTCORE_DATA, or use --dataset digits"
            ) from error


ARXIV = "ogbn-arxiv"
NAMES = ("flickr", "reddit", "yelp", ARXIV)

_LOADERS = {"flickr": "Flickr", "reddit": "Reddit", "yelp": "Yelp"}  # classes of torch_geometric.datasets


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
    from torch_geometric import get_home_dir

    name = "ogbn_arxiv" if dataset == ARXIV else _LOADERS[dataset]
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
            f"{name} was not found and could not be downloaded ({reason(error)}); name a folder that has {name}/ in "
            "it with --data-root or ACTCORE_DATA, or use --dataset generated-arxiv, which is as large as ogbn-arxiv"
        ) from error


def _pyg(dataset: str, folder: Path) -> Graph:
    from torch_geometric.utils import remove_self_loops

    # Imported here: all of torch-geometric's datasets take seconds, which each process of a cell would spend.
    loader = getattr(importlib.import_module("torch_geometric.datasets"), _LOADERS[dataset])
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
            f"ogbn-arxiv was not found, and ogb, which downloads it, cannot be imported ({error}); pip install "
            "actcore-bench[graphs], or use --dataset generated-arxiv"
        ) from error
    with contextlib.redirect_stdout(sys.stderr):
        nodes.NodePropPredDataset(name=ARXIV, root=str(folder.parent))


def _arxiv(folder: Path) -> Graph:
    """The citations in both directions, as usual, and the split by year.

    The tables that ``ogb`` unpacks are read, not its processed form: that is a pickle, which torch refuses to load.
    """

    from torch_geometric.utils import index_to_mask, remove_self_loops, to_undirected

    def table(name: str, dtype: type[np.generic] = np.int64) -> Tensor:
        return torch.from_numpy(np.loadtxt(folder / f"{name}.csv.gz", delimiter=",", dtype=dtype, ndmin=2))

    x, y = table("raw/node-feat", np.float32), table("raw/node-label").flatten()
    edges, _ = remove_self_loops(to_undirected(table("raw/edge").T.contiguous(), num_nodes=len(x)))
    parts = (index_to_mask(table(f"split/time/{part}").flatten(), len(x)) for part in ("train", "valid", "test"))
    return Graph(ARXIV, "split by year", x, edges, y, *parts)
