"""``python -m integrations doctor``: what is here, and which versions of torch have which private names."""

import json
from dataclasses import replace

import pytest
import torch

from integrations._utils import torch_internals, torch_versions
from integrations.api import doctor
from integrations.cli import main

HERE = torch.__version__.partition("+")[0]


@pytest.fixture
def without(monkeypatch):
    """Hides names of torch."""

    def hide(*paths, spared=False):
        hidden = {path: replace(torch_internals.NAMES[path], path=f"{path}_gone", spared=spared) for path in paths}
        monkeypatch.setattr(doctor, "NAMES", {**torch_internals.NAMES, **hidden})

    return hide


def line_of(path, capsys):
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"{path} ")]
    return line


def test_it_says_what_is_here(capsys):
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    there = sum(name.is_there for name in torch_internals.NAMES.values())
    assert f"has {there} of {len(torch_internals.NAMES)} private names" in printed
    assert "actcore: version" in printed
    assert "transformers" in printed
    assert f"{HERE} here" in printed
    assert all(path in printed for path in torch_internals.NAMES)
    assert all(version in printed for version in torch_versions.recorded())
    assert " NO" not in printed


def test_it_fails_where_a_name_is_gone_that_is_needed(capsys, without):
    without("torch._C._current_graph_task_id")
    assert main(["doctor"]) == 1
    printed = capsys.readouterr()
    assert "torch._C._current_graph_task_id_gone" in printed.out
    assert "these features need: a compressed model in backward. Do not use them" in printed.err


def test_a_name_that_is_done_without_is_told_of(capsys, without):
    without("torch._C.ScriptMethod", spared=True)
    assert main(["doctor"]) == 0
    assert "no; not needed" in capsys.readouterr().out


def test_a_version_that_lacks_a_name_is_told_of_in_front(capsys, monkeypatch):
    """And one that was not looked at for it."""
    path = "torch._C.ScriptMethod"
    monkeypatch.setattr(doctor, "recorded", lambda: {"1.0.0": {path: "n"}, HERE: {}, "99.0.0": {}})
    assert main(["doctor"]) == 0
    assert line_of(path, capsys).split()[-3:] == ["no", "yes", "?"]


def test_the_record_is_of_the_names_that_are_used():
    known = torch_versions.recorded()
    assert {"2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1"} <= known.keys()
    assert all(names.keys() <= torch_internals.NAMES.keys() for names in known.values()), "run tools/torch_names.py"
    if HERE in known:  # the record of this torch is of all names, and says which it has
        here = {path: "y" if name.is_there else "n" for path, name in torch_internals.NAMES.items()}
        assert known[HERE] == here, "run tools/torch_names.py"


def test_a_version_is_recorded_beside_the_others():
    before = torch_versions.recorded()
    made = json.loads(torch_versions.content_with("2.9.0", {"torch._C.ScriptMethod": False, "torch._new": True}))
    assert made["versions"] == ["2.9.0", *before]
    assert made["names"]["torch._new"] == "y" + "?" * len(before)
    assert made["names"]["torch._C.ScriptMethod"][0] == "n"
    assert made["names"]["torch._conj"] == "?" + "".join(names["torch._conj"] for names in before.values())
