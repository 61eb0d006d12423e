"""``python -m bench llm``: its cells, its records and its tables."""

import json

import pytest

from bench import cli, records
from bench.layout import console
from bench.llm.cell import Cell
from bench.llm.results import Trained
from bench.llm.subjects import CHUNKED, DENSE, SUBJECTS
from bench.process_memory import ENVIRONMENT
from bench.records import shown

SMALL = "loss-small"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run of the small loss, in real processes."""
    file = tmp_path_factory.mktemp("llm") / "llm.json"
    assert cli.main(["llm", "--subject", SMALL, "--rounds", "2", "--threads", "1", "--json", str(file)]) == 0
    return file


def test_a_run_from_end_to_end(recorded):
    results = records.load(recorded)
    assert [cell.way for cell in results.of(Trained)] == list(SUBJECTS[SMALL].ways)
    dense, chunked = (next(cell for cell in results.of(Trained) if cell.way == way) for way in (DENSE, CHUNKED))
    logits = 512 * 2000 * 4
    assert chunked.peak < logits < dense.peak
    for cell in (dense, chunked):
        assert cell.gradients == (512 + 2000) * 64 * 4
        assert 0 < cell.error < 1e-6
        assert cell.loss_error < 1e-5
        assert len(cell.seconds) == 2
    assert chunked.times(chunked) == 1


def test_what_the_file_has_is_not_measured_again(recorded, monkeypatch):
    monkeypatch.setattr("bench.llm.measure.measured", lambda *_: pytest.fail("it is measured again"))
    before = recorded.read_text()
    assert cli.main(["llm", "--subject", SMALL, "--rounds", "2", "--threads", "1", "--json", str(recorded)]) == 0
    assert json.loads(recorded.read_text())["entries"] == json.loads(before)["entries"]


def test_the_table_and_what_failed(recorded):
    results = records.load(recorded)
    failed = Trained("llama-small", "plain", failure="it was too large")
    out = console()
    with out.capture() as capture:
        out.print(shown(results.adding([failed])))
    text = capture.get()
    assert SUBJECTS[SMALL].what in text
    assert "llama-small, plain: it was too large." in text


def test_a_cell_says_why_it_cannot_measure(monkeypatch):
    monkeypatch.delenv(next(iter(ENVIRONMENT)), raising=False)
    cell = Cell(SMALL, CHUNKED)
    assert "the process must be started with" in cell.answer("peak")["failure"]
    assert cell.answer("error")["value"] < 1e-6
