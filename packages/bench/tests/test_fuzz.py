"""Recorded results, images and sentences, damaged at random: each is read, or refused with a ``BenchError``.

``ACTCORE_FUZZ_EXAMPLES`` says how many of each; see ``test_fuzz.py`` of integrations, whose damage this is.
"""

import importlib.util
import io
import json
import os
import random
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.cli import main, suites
from bench.errors import BenchError
from bench.models.data import images
from bench.models.data import mrpc as sentences

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = int(os.environ.get("ACTCORE_FUZZ_EXAMPLES", "100"))
fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="ACTCORE_FUZZ_EXAMPLES" not in os.environ,
    database=None,
    suppress_health_check=list(HealthCheck),
)
SEEDS = st.integers(0, 2**48)


@pytest.fixture(scope="module")
def damage():
    """The module that damages JSON, which is beside the tests of integrations."""
    path = ROOT / "packages" / "integrations" / "tests" / "damaged_json.py"
    spec = importlib.util.spec_from_file_location("damaged_json", path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def read(load):
    """What it returns; the ``BenchError`` that it raises, if it does."""
    try:
        return load()
    except BenchError as error:
        return error


@pytest.mark.parametrize("name", ["vision-memory-cpu.json", "activations-adaptation-cpu.json"])
def test_records(name, damage, tmp_path, capsys):
    content = json.loads((ROOT / "packages" / "bench" / "results" / name).read_text())
    path = tmp_path / "record.json"
    shown = 0

    @fuzz
    @given(SEEDS)
    def run(seed):
        nonlocal shown
        path.write_text(damage.damaged(content, seed), encoding="utf-8", errors="surrogatepass")
        found = read(lambda: main.run_show(Namespace(results=path, chart=None)))
        shown += found is None
        capsys.readouterr()

    run()
    assert 0 < shown < EXAMPLES


def test_a_record_too_deep(tmp_path, damage):
    (tmp_path / "deep.json").write_text(damage.DEEP)
    with pytest.raises(BenchError, match="more than 32 levels deep"):
        suites.load(tmp_path / "deep.json")


def test_images(tmp_path):
    file = io.BytesIO()
    labels = np.arange(4) % 10
    whole = {"train_images": np.zeros((4, 3, 32, 32), np.uint8), "train_labels": labels}
    np.savez_compressed(file, **whole, test_images=whole["train_images"], test_labels=labels)
    path = tmp_path / images.FILE

    @fuzz
    @given(SEEDS)
    def run(seed):
        chance, content = random.Random(seed), bytearray(file.getvalue())
        for _ in range(chance.randint(0, 4)):
            place = chance.randrange(len(content))
            content[place : place + chance.randint(0, 2)] = chance.randbytes(chance.randint(0, 2))
        path.write_bytes(content)
        found = read(lambda: images.cifar10(path))
        assert isinstance(found, BenchError) or len(found.x) == len(found.y)

    run()


def test_sentences(tmp_path, monkeypatch):
    path = tmp_path / "sentences.txt"
    whole = "\t".join(sentences._HEADINGS) + "\n1\t2\t3\tOne is so.\tOne is not.\n0\t4\t5\ta b\tc\n"

    @fuzz
    @given(SEEDS)
    def run(seed):
        chance, content = random.Random(seed), bytearray(whole.encode("utf-8-sig"))
        for _ in range(chance.randint(0, 3)):
            place = chance.randrange(len(content))
            content[place : place + chance.randint(0, 2)] = chance.choice((b"\t", b"\n", b"\xff", b"", b"\r", b"\0"))
        path.write_bytes(content)
        found = read(lambda: sentences.rows(path))
        assert isinstance(found, BenchError) or all(row.label in (0, 1) for row in found)

    run()
    monkeypatch.setattr(sentences, "_LARGEST", 9)
    with pytest.raises(BenchError, match="must have at most 9 bytes"):
        sentences.rows(path)
