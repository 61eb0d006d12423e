import shutil
import urllib.error
import urllib.request

import pytest
import torch

from bench.errors import BenchError
from bench.models.data import graphs
from bench.models.data.downloaded_graphs import DownloadRefused


@pytest.fixture
def nothing_at_hand(monkeypatch, tmp_path):
    """No named folder, an empty cache, and a network that refuses; the list holds the addresses that were asked for."""
    asked = []

    def refuse(url, timeout):
        asked.append(url)
        raise urllib.error.URLError("Connection refused")

    monkeypatch.delenv("ACTCORE_DATA", raising=False)
    monkeypatch.setenv("PYG_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    return asked


@pytest.fixture
def copied_root(cora_root, tmp_path):
    """A copy of Cora's raw files that a test may damage."""
    shutil.copytree(cora_root / "planetoid/Cora/raw", tmp_path / "data/planetoid/Cora/raw")
    return tmp_path / "data"


# ---- the built-in graph ----


def test_digits_is_a_symmetric_graph_without_loops(graph):
    row, column = graph.edge_index
    links = torch.zeros(1797, 1797, dtype=torch.bool)
    links[row, column] = True
    assert torch.equal(links, links.T)
    assert not links.diagonal().any()
    assert links.sum() == graph.edge_index.shape[1]  # none twice
    assert links.sum(1).min() >= 8


def test_digits_has_planetoid_s_split_and_normalised_rows(graph):
    assert graph.x.shape == (1797, 64)
    assert graph.classes == 10
    assert [int(mask.sum()) for mask in (graph.train, graph.validation, graph.test)] == [200, 500, 1000]
    assert not (graph.train & graph.validation | graph.train & graph.test | graph.validation & graph.test).any()
    assert torch.equal(graph.y[graph.train].bincount(), torch.full((10,), 20))
    torch.testing.assert_close(graph.x.sum(1), torch.ones(1797))


def test_digits_is_always_the_same(graph):
    again = graphs.digits()
    for name in ("x", "edge_index", "y", "train", "validation", "test"):
        assert torch.equal(getattr(graph, name), getattr(again, name))


# ---- Planetoid ----


@pytest.mark.parametrize(
    ("dataset", "nodes", "edges", "features", "classes"),
    [("cora", 2708, 10556, 1433, 7), ("citeseer", 3327, 9104, 3703, 6)],
)
def test_planetoid_has_the_published_sizes(cora_root, dataset, nodes, edges, features, classes):
    if dataset == "citeseer" and not (cora_root / "planetoid/CiteSeer").is_dir():
        pytest.skip(f"no planetoid/CiteSeer in {cora_root}")
    found = graphs.load(dataset, cora_root)
    assert found.x.shape == (nodes, features)
    assert found.edge_index.shape == (2, edges)
    assert found.classes == classes
    assert [int(mask.sum()) for mask in (found.train, found.validation, found.test)] == [20 * classes, 500, 1000]


def test_the_named_folder_is_only_read(copied_root):
    before = sorted(copied_root.rglob("*"))
    assert graphs.load("auto", copied_root).name == "Cora"
    assert sorted(copied_root.rglob("*")) == before


def test_the_environment_names_the_folder(copied_root, monkeypatch):
    monkeypatch.setenv("ACTCORE_DATA", str(copied_root))
    assert graphs.load("cora").name == "Cora"


@pytest.mark.parametrize("dataset", ["auto", "cora"])
def test_a_corrupted_file_is_named_and_never_unpickled(copied_root, dataset, monkeypatch):
    file = copied_root / "planetoid/Cora/raw/ind.cora.allx"
    content = bytearray(file.read_bytes())
    content[1000] ^= 1
    file.write_bytes(content)
    monkeypatch.setattr("torch_geometric.io.read_planetoid_data", lambda *_: pytest.fail("was read"))
    with pytest.raises(BenchError, match=r"ind\.cora\.allx is corrupted: its 257305 bytes are not what Planetoid"):
        graphs.load(dataset, copied_root)


def test_a_missing_file_is_named(copied_root):
    (copied_root / "planetoid/Cora/raw/ind.cora.graph").unlink()
    with pytest.raises(BenchError, match=r"Cora is incomplete: .*ind\.cora\.graph cannot be read \(No such file"):
        graphs.load("cora", copied_root)


@pytest.mark.parametrize("dataset", ["auto", "cora"])
def test_a_folder_that_is_not_there_is_an_error(tmp_path, dataset):
    with pytest.raises(BenchError, match=r"--data-root must name a folder .* there is no folder .*nowhere"):
        graphs.load(dataset, tmp_path / "nowhere")


def test_so_it_is_in_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("ACTCORE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(BenchError, match="ACTCORE_DATA must name a folder"):
        graphs.load("auto")


def test_an_unknown_dataset_is_an_error():
    with pytest.raises(
        BenchError, match=r"must be one of auto, cora, citeseer, digits, .*generated-arxiv, got 'pubmed'"
    ):
        graphs.load("pubmed")


# ---- downloads ----


def test_a_refused_download_is_said_in_one_line_and_the_built_in_graph_is_used(nothing_at_hand):
    told = []
    assert graphs.load("auto", tell=told.append).name == "digits"
    [line] = told
    assert "\n" not in line
    assert line.startswith("The built-in digits graph is used: Cora was not found and could not be downloaded")
    assert "Connection refused" in line
    assert len(nothing_at_hand) == 1  # it gives up at the first file


@pytest.mark.parametrize("dataset", ["cora", "citeseer"])
def test_asked_for_by_name_it_is_an_error_that_says_the_way_out(nothing_at_hand, dataset):
    with pytest.raises(DownloadRefused, match=r"--data-root or ACTCORE_DATA, or use --dataset digits"):
        graphs.load(dataset)


def test_a_download_is_kept_and_checked(cora_root, nothing_at_hand, monkeypatch, tmp_path):
    monkeypatch.setattr(
        urllib.request,
        "urlopen",
        lambda url, timeout: (cora_root / "planetoid/Cora/raw" / url.split("/")[-1]).open("rb"),
    )
    assert graphs.load("auto").name == "Cora"
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: pytest.fail("asked again"))
    assert graphs.load("cora").name == "Cora"
    assert len(list((tmp_path / "cache/planetoid/Cora/raw").iterdir())) == 8


def test_a_download_of_something_else_is_refused(nothing_at_hand, monkeypatch, tmp_path):
    page = tmp_path / "page"
    page.write_text("<html>Please log in</html>")
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: page.open("rb"))
    assert graphs.load("auto").name == "digits"
    with pytest.raises(BenchError, match="the download is not the file that Planetoid published"):
        graphs.load("cora")
    assert not list(tmp_path.glob("cache/**/ind.cora.*")), "what was refused is not left in the cache"
