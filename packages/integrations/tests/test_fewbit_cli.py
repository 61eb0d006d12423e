"""``python -m integrations.fewbit``: what it prints and writes, and what it refuses in one line."""

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

from integrations.fewbit import StepTable, approximate, table
from integrations.fewbit.cli import main
from integrations.fewbit.store import StepwiseStore


def run(capsys, *arguments):
    code = main(list(arguments))
    return code, *capsys.readouterr()


def test_fit_prints_and_writes(capsys, tmp_path):
    path = tmp_path / "gelu.json"
    code, told, complaint = run(capsys, "fit", "gelu", "--bits", "2", "--output", str(path))
    assert (code, complaint) == (0, "")
    assert re.search(r"squared error 0\.0405\d+ over -10 to 10, weight uniform; fitted in \d\.\d\d s", told)
    written = json.loads(path.read_text())
    found = StepTable(tuple(written["boundaries"]), tuple(written["levels"]), written["even"])
    assert (written["name"], written["bits"], found) == ("gelu", 2, approximate("gelu", 2))


def test_fit_takes_any_function_domain_and_weight(capsys, tmp_path):
    pytest.importorskip("numpy")
    path = tmp_path / "own.npz"
    options = ("--bits", "3", "--domain", "-6", "6", "--weight", "normal", "-o", str(path))
    assert run(capsys, "fit", "torch:sin", *options)[0] == 0
    assert run(capsys, "fit", "elu", "--parameters", "2.0", "-o", str(path))[0] == 0
    assert run(capsys, "fit", "tanh", "--parity", "none", "-o", str(path))[0] == 0
    own = StepwiseStore()
    own.load(path)
    assert own.table("elu", 3) == approximate("elu", 3, parameters=(2.0,))
    assert {name for name, _ in own._added} == {"sin", "elu", "tanh"}


@pytest.mark.parametrize(("function", "bits"), [("selu", 3), ("selu", 2), ("hardswish", 3), ("gelu", 8)])
def test_quantize_always_converges(capsys, tmp_path, function, bits):
    """FewBit's failed or did not converge on each of these."""
    pytest.importorskip("numpy")
    path = tmp_path / "t.npz"
    command = ("quantize", "-M", "9", "-b", "1e-6", "-l", "1e-6", "-s", "42")
    code, _, complaint = run(capsys, *command, str(bits), f"torch.nn.functional:{function}", "-o", str(path))
    assert (code, complaint) == (0, "")
    own = StepwiseStore()
    own.load(path)
    assert len(own.table(function, bits).levels) == 2**bits
    assert run(capsys, "quantize", "1", "torch:tanh", "-o", str(path))[0] == 0
    own.load(path)
    assert own._added.keys() == {(function, bits), ("tanh", 1)}


def test_fit_draws(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "gelu3.png"
    assert run(capsys, "fit", "gelu", "--bits", "3", "--plot", str(path))[0] == 0
    assert path.stat().st_size > 10_000
    assert run(capsys, "draw", str(path), "--bits", "1")[0] == 0
    assert path.stat().st_size > 30_000


def test_regenerate_names_its_files(capsys, tmp_path, monkeypatch):
    from integrations.policies.codebooks import shipped

    fitted = shipped.fitted
    monkeypatch.setattr(shipped, "fitted", lambda function: fitted(function, (1,)))
    code, told, _ = run(capsys, "regenerate", "selu", "--folder", str(tmp_path / "new"))
    assert (code, told) == (0, f"{tmp_path / 'new' / 'selu.json'}\n")
    assert StepTable(*map(tuple, json.loads(Path(told.strip()).read_text())["uniform"]["steps"][0])) == table("selu", 1)


def test_version_and_help(capsys, monkeypatch):
    assert run(capsys, "version")[:2] == (0, "0.1.0\n")
    assert "quantize" in run(capsys, "help")[1]
    monkeypatch.setattr(sys, "argv", ["fewbit", "version"])
    with pytest.raises(SystemExit) as exited:
        runpy.run_module("integrations.fewbit", run_name="__main__")
    assert (exited.value.code, capsys.readouterr().out) == (0, "0.1.0\n")


REFUSED = [
    ("function must be one of relu, .*, or module:function, got 'gelo'", ("fit", "gelo")),
    ("No module named 'nowhere'", ("fit", "nowhere:f")),
    ("torch has no 'nothing'", ("fit", "torch:nothing")),
    ("torch:float32 must be a function", ("fit", "torch:float32")),
    ("bits must be from 1 to 8, got 9", ("fit", "gelu", "--bits", "9")),
    ("domain must be two finite numbers that ascend", ("fit", "gelu", "--domain", "3", "1")),
    ("a table's file must end in .npz or .json, got t.txt", ("fit", "gelu", "-o", "t.txt")),
    ('the steps of tanh are over |x|; fit with parity "none"', ("fit", "tanh", "-o", "t.npz")),
    ("nodir/x.npz cannot be written: there is no folder nodir; make it first", ("fit", "gelu", "-o", "nodir/x.npz")),
    ("nodir/x.png cannot be written: there is no folder nodir", ("fit", "gelu", "--plot", "nodir/x.png")),
    ("nodir/x.npz cannot be written: there is no folder nodir", ("quantize", "3", "gelu", "-o", "nodir/x.npz")),
    ("nodir/x.png cannot be written: there is no folder nodir", ("draw", "nodir/x.png")),
    ("functions must be some of celu, .*, got relu", ("regenerate", "relu")),
    ("bits must be from 1 to 8, got 0", ("quantize", "0", "torch:tanh")),
]


@pytest.mark.parametrize(("text", "arguments"), REFUSED)
def test_mistakes_are_one_line(capsys, tmp_path, monkeypatch, text, arguments):
    monkeypatch.chdir(tmp_path)
    code, told, complaint = run(capsys, *arguments)
    assert code == 1
    assert not told or "are over |x|" in text  # which only the fit tells
    assert re.fullmatch("python -m integrations.fewbit: .*\n", complaint)
    assert re.search(text.replace("|x|", r"\|x\|"), complaint)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_none_is_not_overwritten(capsys, tmp_path):
    pytest.importorskip("numpy")
    path = tmp_path / "notes.npz"
    path.write_text("notes")
    code, _, complaint = run(capsys, "quantize", "1", "torch:tanh", "-o", str(path))
    assert code == 1
    assert "exists and is not an .npz file; choose another name" in complaint
    assert path.read_text() == "notes"
