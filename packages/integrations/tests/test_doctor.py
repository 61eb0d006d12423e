"""``python -m integrations doctor``: what is here."""

from dataclasses import replace

import pytest

from integrations import _torch, doctor
from integrations.cli import main


@pytest.fixture
def without(monkeypatch):
    """Hides names of torch."""

    def hide(*paths, spared=False):
        hidden = {path: replace(_torch.NAMES[path], path=f"{path}_gone", spared=spared) for path in paths}
        monkeypatch.setattr(doctor, "NAMES", {**_torch.NAMES, **hidden})

    return hide


def test_it_says_what_is_here(capsys):
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert f"has all {len(_torch.NAMES)} private names" in printed
    assert "actcore: version" in printed
    assert "transformers" in printed


def test_it_lists_every_name(capsys):
    assert main(["doctor", "--names"]) == 0
    printed = capsys.readouterr().out
    assert all(path in printed for path in _torch.NAMES)
    assert " NO" not in printed


def test_it_fails_where_a_name_is_gone_that_is_needed(capsys, without):
    without("torch._C._current_graph_task_id")
    assert main(["doctor"]) == 1
    printed = capsys.readouterr()
    assert "torch._C._current_graph_task_id_gone" in printed.out
    assert "leave alone a compressed model in backward, or use a torch that has them" in printed.err


def test_a_name_that_is_done_without_is_told_of(capsys, without):
    without("torch._C.ScriptMethod", spared=True)
    assert main(["doctor"]) == 0
    assert "no; done without" in capsys.readouterr().out
