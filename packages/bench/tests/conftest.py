import json
import os
from pathlib import Path

import pytest
import torch

from bench.models.data import mrpc as sentences
from bench.models.data.graph import Graph
from bench.models.data.graphs import digits, load
from bench.models.masked_bert import Recipe
from bench.results.machine import Machine
from bench.results.record import Record
from bench.runner import child
from bench.runner.memory import Memory
from bench.suites.fewbit import command, training
from bench.suites.gnn.entries import Curve
from bench.suites.memory.systems import steps


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """The graphs are small: threads would only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def cora_root() -> Path:
    """A folder with ``planetoid/Cora/raw``: ``ACTCORE_DATA``, or ``../shared/data`` beside the repository."""
    root = _data_root()
    if not (root / "planetoid" / "Cora" / "raw").is_dir():
        pytest.skip(f"no planetoid/Cora/raw in {root}; name a folder that has it with ACTCORE_DATA")
    return root


@pytest.fixture(scope="session")
def cora_or_digits() -> Graph:
    """Cora where that folder is at hand, otherwise the built-in graph; nothing is downloaded."""
    root = _data_root()
    return load("cora", root) if (root / "planetoid" / "Cora" / "raw").is_dir() else digits()


def _data_root() -> Path:
    return Path(os.environ.get("ACTCORE_DATA") or Path(__file__).parents[3].parent / "shared" / "data")


@pytest.fixture(scope="session")
def graph() -> Graph:
    return digits()


@pytest.fixture
def results() -> Record:
    """Two seeds of a GCN at full precision and L1, with round numbers."""

    def curve(level: str, seed: int, accuracy: float, loss: float, seconds: float) -> Curve:
        return Curve("gcn", level, seed, [loss, loss], [50.0, 70.0], [40.0, accuracy], [seconds])

    mib = 2**20
    return Record(
        "gnn",
        Machine("a processor", 2, "Linux", {"torch": "2.15.0"}, "0123456789abcdef", True, "python", "today"),
        {
            "dataset": "Cora",
            "data": "Cora (2,708 nodes)",
            "recipe": {"epochs": 100, "final loss over epochs": 1},
            "device": "cpu",
            "measure": "accuracy",
        },
        [
            curve("L0", 0, 80.0, 0.10, 1.0),
            curve("L0", 1, 82.0, 0.20, 2.0),
            curve("L1", 0, 81.0, 0.11, 1.5),
            curve("L1", 1, 82.0, 0.20, 3.0),
            Memory("gcn", "L0", 17 * mib, 40 * mib),
            Memory("gcn", "L1", 2 * mib, 20 * mib, original_bytes=16 * mib, stored_bytes=mib),
        ],
        seconds=90.0,
    )


@pytest.fixture
def corpus(tmp_path):
    """A folder with a corpus of 40 pairs for training and 10 held out."""
    folder = tmp_path / "data" / sentences.FOLDER
    folder.mkdir(parents=True)
    for file, count in zip(sentences.FILES, (40, 10), strict=True):
        rows = [
            f'1\t1\t2\tThe {n} cats, said Ann, "sat" on the mat.\tOn the mat sat {n} cats, Ann said.'
            for n in range(count)
        ]
        (folder / file).write_text("\n".join(["\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String", *rows]) + "\n")
    return folder.parent


@pytest.fixture
def recipe(monkeypatch):
    """Of a training of a second."""
    tiny = Recipe(layers=1, width=16, heads=2, vocabulary=20, length=32, batch=8, steps=4, warm_up=2)
    monkeypatch.setattr(command, "Recipe", lambda **_: tiny)
    monkeypatch.setattr(training, "STRIDE", 2)
    return tiny


class Counted:
    """Counts nothing: the real counters need a process that was started for them."""

    def live(self) -> int:
        return 0

    def start_peak(self) -> int:
        return 0

    def peak(self) -> int:
        return 1 << 20


@pytest.fixture
def no_child(monkeypatch):
    """Answer what children are asked in this process, which has imported torch and the libraries of models already.

    Requests and answers go through JSON. Children themselves are tested in test_memory.py and test_activations.py.
    """

    def ask(worker, request, seconds=None):
        return json.loads(json.dumps(child.answer(json.loads(json.dumps(request)))))

    monkeypatch.setattr(child.Child, "ask", ask)


@pytest.fixture
def counted(monkeypatch) -> Counted:
    """What cells of ``bench systems`` count with: every peak is one MiB."""
    counters = Counted()
    monkeypatch.setattr(steps, "counters", lambda device: counters)
    return counters
