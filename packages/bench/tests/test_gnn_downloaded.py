"""The large graphs: loaders of other libraries, and what is said where they can get nothing."""

import json
import os
import sys
import types
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch

from bench.errors import BenchError, MissingLibrary
from bench.models.data import graphs
from bench.models.data.downloaded_graphs import DownloadRefused


@pytest.fixture
def nothing_at_hand(monkeypatch, tmp_path):
    """An empty cache, and a network that refuses."""

    def refuse(*_, **__):
        raise urllib.error.URLError("Connection refused")

    monkeypatch.delenv("ACTCORE_DATA", raising=False)
    monkeypatch.setenv("PYG_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("urllib.request.urlopen", refuse)


class Arxiv:
    """As ogb's class is: it downloads."""

    def __init__(self, name, root):
        (Path(root) / "ogbn_arxiv" / "raw").mkdir(parents=True)
        urllib.request.urlopen("an address")


@pytest.fixture
def ogb(monkeypatch):
    module = types.ModuleType("ogb.nodeproppred")
    module.NodePropPredDataset = Arxiv
    monkeypatch.setitem(sys.modules, "ogb", types.ModuleType("ogb"))
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", module)


@pytest.mark.parametrize(
    ("dataset", "folder"),
    [("flickr", "Flickr"), ("reddit", "Reddit"), ("yelp", "Yelp"), ("ogbn-arxiv", "ogbn_arxiv")],
)
def test_a_refused_download_says_why_and_the_way_out(dataset, folder, nothing_at_hand, ogb, tmp_path):
    with pytest.raises(DownloadRefused, match=rf"{folder} was not found .*refused.*--dataset generated-arxiv"):
        graphs.load(dataset)
    assert not (tmp_path / "cache" / folder).exists(), "a part of a download would be taken for all of it"


def test_ogb_that_is_not_there_is_named(nothing_at_hand, monkeypatch):
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", None)
    with pytest.raises(MissingLibrary, match=r"pip install actcore-bench\[graphs\], or use --dataset generated-arxiv"):
        graphs.load("ogbn-arxiv")


@pytest.mark.parametrize("dataset", ["flickr", "ogbn-arxiv"])
def test_a_folder_that_is_not_there_is_an_error(dataset, tmp_path, ogb):
    with pytest.raises(BenchError, match=r"--data-root must name a folder .* there is no folder .*nowhere"):
        graphs.load(dataset, tmp_path / "nowhere")


def write_raw(folder, labels):
    """Four nodes on a path, in GraphSAINT's files."""
    raw = folder / "raw"
    raw.mkdir(parents=True)
    links = scipy.sparse.csr_matrix(([1] * 6, ([0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2])), (4, 4))
    np.savez(raw / "adj_full.npz", data=links.data, indices=links.indices, indptr=links.indptr, shape=links.shape)
    np.save(raw / "feats.npy", np.eye(4))
    (raw / "class_map.json").write_text(json.dumps(labels))
    (raw / "role.json").write_text(json.dumps({"tr": [0, 1], "va": [2], "te": [3]}))


@pytest.mark.parametrize(
    ("dataset", "labels", "several"),
    [("Flickr", {"0": 0, "1": 1, "2": 1, "3": 0}, False), ("Yelp", {str(n): [1, n % 2, 0] for n in range(4)}, True)],
)
def test_what_is_at_hand_is_read_by_its_loader(dataset, labels, several, tmp_path, nothing_at_hand):
    write_raw(tmp_path / dataset, labels)
    graph = graphs.load(dataset.lower(), tmp_path)
    assert graph.name == dataset
    assert graph.edge_index.shape == (2, 6)
    assert graph.several is several
    assert graph.classes == (3 if several else 2)
    assert graph.y.dtype == (torch.float32 if several else torch.int64)
    assert [int(mask.sum()) for mask in (graph.train, graph.validation, graph.test)] == [2, 1, 1]


class Harmful:
    """Runs code when it is loaded."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


def test_what_a_loader_has_written_is_read_again_and_never_unpickled(tmp_path, nothing_at_hand, monkeypatch):
    """torch-geometric loads what torch refuses, with a warning."""
    monkeypatch.delenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", raising=False)
    write_raw(tmp_path / "Flickr", {"0": 0, "1": 1, "2": 1, "3": 0})
    first = graphs.load("flickr", tmp_path)
    processed = tmp_path / "Flickr" / "processed" / "data.pt"
    assert processed.is_file()
    assert torch.equal(graphs.load("flickr", tmp_path).edge_index, first.edge_index)
    torch.save(Harmful(tmp_path / "touched"), processed)
    with pytest.raises(BenchError, match="Flickr cannot be read"):
        graphs.load("flickr", tmp_path)
    assert not (tmp_path / "touched").exists()
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


def test_a_download_that_is_interrupted_leaves_no_part(tmp_path, nothing_at_hand, ogb, monkeypatch):
    def interrupted(address):
        raise KeyboardInterrupt

    monkeypatch.setattr("urllib.request.urlopen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        graphs.load("ogbn-arxiv")
    assert not (tmp_path / "cache" / "ogbn_arxiv").exists()


def test_what_cannot_be_read_is_named_and_kept(tmp_path, nothing_at_hand):
    write_raw(tmp_path / "Flickr", {})
    (tmp_path / "Flickr/raw/feats.npy").write_text("half of it")
    with pytest.raises(BenchError, match=r"Flickr cannot be read .* delete it to download it anew"):
        graphs.load("flickr", tmp_path)
    assert (tmp_path / "Flickr/raw/feats.npy").exists()


def test_ogbn_arxiv_has_both_directions_and_its_own_split(tmp_path, nothing_at_hand, monkeypatch):
    """Read without ogb, which only downloads it."""
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", None)
    tables = {
        "raw/edge": [[0, 1], [1, 2], [2, 1], [3, 4], [4, 4]],
        "raw/node-feat": np.eye(5) / 4,
        "raw/node-label": [[0], [1], [2], [0], [1]],
        "split/time/train": [[0], [1]],
        "split/time/valid": [[2]],
        "split/time/test": [[3], [4]],
    }
    for name, rows in tables.items():
        file = tmp_path / "ogbn_arxiv" / f"{name}.csv.gz"
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savetxt(file, np.array(rows), fmt="%g", delimiter=",")
    found = graphs.load("ogbn-arxiv", tmp_path)
    assert found.edge_index.T.tolist() == [[0, 1], [1, 0], [1, 2], [2, 1], [3, 4], [4, 3]]
    assert torch.equal(found.x, torch.eye(5) / 4)
    assert found.y.tolist() == [0, 1, 2, 0, 1]
    assert found.train.tolist() == [True, True, False, False, False]
    assert found.validation.tolist() == [False, False, True, False, False]
    assert found.test.tolist() == [False, False, False, True, True]


def test_ogbn_arxiv_that_is_incomplete_is_named(tmp_path, nothing_at_hand, ogb):
    (tmp_path / "ogbn_arxiv").mkdir()
    with pytest.raises(BenchError, match=r"ogbn_arxiv cannot be read .*node-feat\.csv\.gz not found"):
        graphs.load("ogbn-arxiv", tmp_path)
