"""FewBit's store: its names and files, and what went wrong with them."""

import ast
import math
from pathlib import Path

import pytest
import torch

from integrations import fewbit
from integrations.fewbit import StepTable, table
from integrations.fewbit.store import StepwiseStore, store

numpy = pytest.importorskip("numpy")


def test_the_store_begins_with_every_smooth_function():
    assert len(store) == 16 * 8
    assert repr(store) == "<StepwiseStore: 128 step functions, 0 of them added>"
    for name in ("gelu", "tanh"):
        borders, levels = store.get(name, 3)
        assert (len(borders), len(levels)) == (9, 8)
        assert (borders[0], borders[-1]) == (-100, 100)
        found = table(name, 3, parity="none")
        assert borders[1:-1].tolist() == torch.tensor(found.boundaries).tolist()
        assert levels.tolist() == torch.tensor(found.levels).tolist()


def test_tensors_are_kept_by_device_and_dtype():
    own = StepwiseStore()
    first = own.get("silu", 2, dtype=torch.float64)
    assert own.get("silu", 2, "cpu", torch.float64) is first
    assert own.get("silu", 2)[0].dtype == torch.float32
    assert [key for key, _ in own.items(cached=True)] == [
        ("silu", 2, torch.device("cpu"), torch.float64),
        ("silu", 2, torch.device("cpu"), torch.float32),
    ]
    assert dict(own.items()).keys() == dict(store.items()).keys()


def test_added_steps_replace_and_stay_in_their_store():
    own = StepwiseStore()
    before = own.get("gelu", 1)[1]
    own.add("gelu", 1, (torch.tensor([-100.0, 0.0, 100.0]), [0.0, 1.0]))
    own.add("bump", 2, StepTable((1.0,), (0.5, 0.25), even=True))
    assert own.get("gelu", 1)[1].tolist() == [0.0, 1.0] != before.tolist()
    assert own.table("bump", 2) == StepTable((-1.0, 1.0), (0.25, 0.5, 0.25))
    assert (len(own), ("bump", 2) in own, ("bump", 2) in store) == (129, True, False)
    assert store.get("gelu", 1)[1].tolist() == before.tolist()
    with pytest.raises(KeyError, match="no steps of 'bump' with 3 bits"):
        own.get("bump", 3)


BAD = [
    (TypeError, "name must be a str, got 3", (3, 1, ([0, 1, 2], [0, 1]))),
    (TypeError, "bits must be an int, got 1.0", ("f", 1.0, ([0, 1, 2], [0, 1]))),
    (ValueError, "bits must be from 1 to 8 and give at least 3 codes, got 1", ("f", 1, ([0, 1, 2, 3], [0, 1, 2]))),
    (ValueError, "borders must have one entry more than levels", ("f", 1, ([0, 1], [0, 1]))),
    (ValueError, "boundaries must ascend", ("f", 2, ([0, 2, 1, 3], [0, 1, 2]))),
]


@pytest.mark.parametrize(("error", "text", "arguments"), BAD)
def test_wrong_steps(error, text, arguments):
    with pytest.raises(error) as raised:
        StepwiseStore().add(*arguments)
    assert text in str(raised.value)


def test_fewbits_own_file_is_read(tmp_path):
    path = tmp_path / "builtin.npz"
    borders, levels = numpy.array([-100, -0.5, 0.5, 2.0, 100]), numpy.array([0.0, 0.4, 0.9, 1.0])
    numpy.savez(path, **{"my_gelu02-borders": borders, "my_gelu02-levels": levels})
    own = StepwiseStore()
    own.load(path)
    assert own.table("my_gelu", 2) == StepTable((-0.5, 0.5, 2.0), (0.0, 0.4, 0.9, 1.0))


DAMAGED = [
    ({"gelu02-borders": [0.0, 1.0]}, "must hold borders and levels of gelu02, got borders alone"),
    ({"gelu": [0.0, 1.0]}, "must be named like gelu03-borders, got 'gelu'"),
    ({"gelu01-borders": [0.0, math.nan, 2.0], "gelu01-levels": [0.0, 1.0]}, "gelu01 in .* must be finite"),
    ({"gelu09-borders": [0.0, 1.0, 2.0], "gelu09-levels": [0.0, 1.0]}, "gelu09 in .* from 1 to 8"),
]


@pytest.mark.parametrize(("arrays", "text"), DAMAGED)
def test_a_damaged_file_adds_nothing(arrays, text, tmp_path):
    path = tmp_path / "damaged.npz"
    good = {"fine01-borders": [0.0, 1.0, 2.0], "fine01-levels": [0.0, 1.0]}
    numpy.savez(path, **good, **arrays)
    own = StepwiseStore()
    with pytest.raises(ValueError, match=text):
        own.load(path)
    assert len(own) == len(store)


def test_numpy_is_imported_by_nobody_but_a_file():
    """No requirement of the package brings it."""
    for path in Path(fewbit.__file__).parent.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            assert not any("numpy" in alias.name for alias in getattr(node, "names", ())), path
            assert "numpy" not in (getattr(node, "module", None) or ""), path
