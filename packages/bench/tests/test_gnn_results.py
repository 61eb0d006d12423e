import dataclasses
import json
from pathlib import Path

import pytest

from bench.cli import suites
from bench.cli.suites import find_report
from bench.errors import BenchError
from bench.results.record import save
from bench.results.tables import console
from bench.runner.memory import Memory

from .gnn_records import replaced, text_of


def test_json_says_where_it_was_made(results, tmp_path):
    save(results, tmp_path / "results.json")
    machine = json.loads((tmp_path / "results.json").read_text())["machine"]
    assert machine["commit"] == "0123456789abcdef"
    assert machine["dirty"] is True
    assert machine["versions"] == {"torch": "2.15.0"}


def test_what_ends_in_the_middle_of_writing_costs_nothing(results, tmp_path, monkeypatch):
    """The file was emptied first: a run that was ended while it wrote lost all that it had."""
    file, link = tmp_path / "results.json", tmp_path / "link.json"
    link.symlink_to(file)
    save(results, link)

    def interrupted(path, text, encoding):
        with path.open("w") as part:
            part.write(text[:100])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", interrupted)
        with pytest.raises(KeyboardInterrupt):
            save(replaced(results, curves=[]), link)
    assert suites.load(file) == results
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", "link.json"}
    assert link.is_symlink()


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"format": 0}', '{"format": 2, "kind": "vision"}', '{"format": 1, "machine": {}}']
)
def test_a_file_that_holds_something_else_is_named(content, tmp_path):
    file = tmp_path / "other.json"
    file.write_text(content)
    with pytest.raises(BenchError, match=r"other\.json holds no results of `python -m bench \.\.\. --json`"):
        suites.load(file)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(BenchError, match=r"cannot be read from .*nothing\.json \(No such file"):
        suites.load(tmp_path / "nothing.json")


def test_the_table_names_data_machine_versions_and_commit(results):
    text = text_of(results)
    for part in ("Cora (2,708 nodes)", "a processor, 2 threads", "torch 2.15.0", "commit 0123456789 with changes"):
        assert part in text
    assert "81.0 ± 1.4" in text
    assert "+0.50 [-5.85, +6.85] ?" in text
    assert "1.050 ✗" in text
    assert "16.0 → 1.0" in text


def test_the_table_loses_nothing_in_a_narrow_terminal(results, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    console().print(find_report(results).render(results))
    text = capsys.readouterr().out
    assert "+0.50 [-5.85, +6.85] ?" in text
    assert "…" not in text


def test_the_table_says_why_nothing_was_measured(results):
    memories = [
        dataclasses.replace(memory, live_bytes=None, peak_bytes=None, not_measured="needs Linux")
        for memory in results.of(Memory)
    ]
    text = text_of(replaced(results, memories=memories))
    assert "gcn, L0; gcn, L1: needs Linux." in text
    assert "20.0" not in text  # the peak
