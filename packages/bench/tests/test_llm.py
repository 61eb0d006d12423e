"""``python -m bench llm``: its cells, its records, its tables and its chart."""

import json
import sys
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from bench.cli import main, suites
from bench.errors import MissingLibrary
from bench.results.record import Record
from bench.runner.child import here
from bench.runner.process_memory import ENVIRONMENT
from bench.suites.llm import command, report, subjects
from bench.suites.llm.cell import Cell, measure_once
from bench.suites.llm.entries import Learned, Trained, fallen
from bench.suites.llm.subjects import DENSE, QUICK, SUBJECTS, TORCH
from bench.units import MIB
from bench.ways import decoders as ways
from bench.ways.decoders import BOUNDS, CHUNKED, CONTEXT, CUT, FEW, MAIN, REMAT, WAYS, planned_beside
from bench.ways.decoders import WAYS as SEARCHED
from bench.ways.general import PLAIN

from .rendering import MACHINE, panels, words

SMALL, MODEL = QUICK
COMMAND = ["llm", "--part", "way", "--subject", SMALL, "--rounds", "2", "--threads", "1"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run of the small loss, in real processes."""
    file = tmp_path_factory.mktemp("llm") / "llm.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "require", without(TORCH, CUT))
        assert main.main([*COMMAND, "--json", str(file)]) == 0
    return file


def without(*missing):
    """Stands for ``require`` where some ways' libraries are not there."""

    def require(way):
        if way in missing:
            raise MissingLibrary(f"the library of {way} is not there")

    return require


def test_a_run_from_end_to_end(recorded):
    results = suites.load(recorded)
    assert [cell.way for cell in results.of(Trained)] == [DENSE, CHUNKED]
    assert results.skipped == [f"{way}: the library of {way} is not there" for way in (TORCH, CUT)]
    dense, chunked = results.of(Trained)
    logits = 512 * 2000 * 4
    assert chunked.peak < logits < dense.peak
    for cell in (dense, chunked):
        assert cell.gradients == (512 + 2000) * 64 * 4
        assert cell.beside == cell.peak - cell.gradients
        assert 0 < cell.error < 1e-6
        assert cell.loss_error < 1e-5
        assert len(cell.seconds) == 2
        assert cell.plain_seconds == dense.seconds
    assert dense.ratio == 1


def test_what_the_file_has_is_not_measured_again(recorded, monkeypatch):
    asked = []

    def measured(left, rounds, threads):
        asked.extend(one.way for one in left)
        return [Trained(one.subject, one.way, peak=1) for one in left]

    monkeypatch.setattr(command, "measured", measured)
    monkeypatch.setattr(command, "require", without(CUT))
    before = json.loads(recorded.read_text())["entries"]
    assert main.main([*COMMAND, "--json", str(recorded)]) == 0
    after = json.loads(recorded.read_text())["entries"]
    assert asked == [TORCH]
    assert after[:2] == before
    assert [entry["way"] for entry in after] == [DENSE, CHUNKED, TORCH]


class Answers:
    """Stands for the processes: a way says what it is told to."""

    said: ClassVar[dict[Any, Any]] = {}
    asked: ClassVar[list[tuple[str, str]]] = []

    def __enter__(self):
        return self

    def __exit__(self, *of):
        pass

    def measure(self, function, entry, **options):
        return replace(entry, **self._said("once", entry))

    def measure_with(self, function, entry, **options):
        found = self._said("seconds", entry)
        return (replace(entry, **found), None) if isinstance(found, dict) else (entry, found)

    def _said(self, request, entry):
        self.asked.append((entry.way, request))
        return self.said.get((entry.way, request), self.said.get(request))


@pytest.fixture
def answers(monkeypatch):
    """All ways have a peak and take turns, but those that a test says otherwise of."""
    monkeypatch.setattr(Answers, "said", {"once": {"peak": 7}, "seconds": 2.0, (PLAIN, "seconds"): 1.0})
    monkeypatch.setattr(Answers, "asked", [])
    monkeypatch.setattr(command, "Child", Answers)
    return Answers


def test_ways_that_are_left_are_timed_beside_plain(answers):
    [found] = command.measured([Trained(MODEL, CHUNKED)], 3, 1)
    assert (found.way, found.peak, found.ratio) == (CHUNKED, 7, 2.0)
    assert found.plain_seconds == [1.0] * 3
    turn = [(PLAIN, "seconds"), (CHUNKED, "seconds")]
    assert answers.asked == [(PLAIN, "once"), (CHUNKED, "once"), *turn * 3]


def test_a_way_that_fails_leaves_the_others(answers):
    plan = planned_beside(0.0)
    answers.said |= {
        (CHUNKED, "seconds"): {"failure": "no more"},
        (plan, "once"): {"does_not_apply": "memory must be at least 1"},
    }
    plain, chunked, planned = command.measured([Trained(MODEL, way) for way in (PLAIN, CHUNKED, plan)], 2, 1)
    assert (plain.ratio, chunked.failure, planned.does_not_apply) == (1, "no more", "memory must be at least 1")
    assert not planned.seconds
    answers.said[PLAIN, "once"] = {"failure": "too large"}
    assert [one.seconds for one in command.measured([Trained(MODEL, CHUNKED)], 2, 1)] == [[]]  # nothing to compare with


def errors(entry):
    """Errors alone, without the counters of bytes."""
    return replace(entry, **Cell(entry.subject, entry.way).errors())


@pytest.mark.parametrize("way", WAYS)
def test_every_way_trains_a_model(way, monkeypatch):
    """The gradient of two batches in each way is that of plain training, within what the way rounds."""
    if way == CUT:
        monkeypatch.setattr(ways, "cut_cross_entropy", lambda: shifted)  # its compiler would take a minute
    elif way == REMAT:
        pytest.importorskip("torch_remat")
    pytest.importorskip("transformers")
    found = here(errors, Trained(MODEL, way))
    if found.does_not_apply:
        # So few tokens that a plain step's peak beyond its gradients is that of the head and little else.
        assert way in [planned_beside(bound) for bound in BOUNDS]
        assert "must be at least" in found.does_not_apply
        return
    assert not found.failure
    error = found.error
    if way in (PLAIN, ways.CHECKPOINTS, ways.SELECTIVE, REMAT, CUT):
        assert error == 0
    elif "L1" in way or "lean" in way:
        # Three times what the recorded models have at 4 bits, 0.1: of few tokens, the noise of each counts for more.
        assert 2**-9 < error < 0.3
    else:
        # The head's products in bfloat16, whose elements are off by 2**-9 at most, in other sums than plain's.
        assert 0 < error < 2**-5


def shifted(hidden, weight, labels, *, shift, softcap):
    """cut-cross-entropy's loss, by torch alone."""
    assert shift
    assert softcap is None
    logits = (hidden[:, :-1] @ weight.t()).float()
    return subjects.F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())


def test_a_library_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cut_cross_entropy", None)
    with pytest.raises(MissingLibrary, match=r"cut_cross_entropy cannot be imported .*actcore-bench\[rivals\]"):
        subjects.require(CUT)
    monkeypatch.delattr(subjects.F, "linear_cross_entropy", raising=False)
    with pytest.raises(MissingLibrary, match=r"it needs torch 2\.13"):
        subjects.require(TORCH)
    subjects.require(DENSE)
    subjects.require(CHUNKED)


def test_names_of_ways_are_known():
    models = [one for one in SUBJECTS.values() if one.kind == subjects.MODEL]
    assert all(one.ways[0] == PLAIN and set(one.ways) <= set(WAYS) for one in models)
    assert set(FEW) <= set(MAIN)
    assert set(CONTEXT) <= set(SEARCHED)
    assert set(report.COLOURS) <= set(MAIN)


def test_a_cell_says_why_it_cannot_measure(monkeypatch):
    monkeypatch.delenv(next(iter(ENVIRONMENT)), raising=False)
    cell = Trained(SMALL, CHUNKED)
    assert "the process must be started with" in here(measure_once, cell).failure
    assert here(errors, cell).error < 1e-6


def test_the_table_and_what_failed(recorded):
    failed = Trained(MODEL, PLAIN, failure="it was too large")
    text = words(suites.load(recorded).adding([failed]))
    assert SUBJECTS[SMALL].what in text
    assert SUBJECTS[MODEL].what in text
    assert f"{MODEL}, plain: failed: it was too large." in text


SETTINGS = {
    "rounds": 2,
    "data": "MRPC",
    "recipe": {"layers": 1, "width": 2, "steps": 3, "rows": 4, "length": 5, "guess": 8.0},
}


def learned(way, *ends):
    return [Learned(way, seed, [7.0, end + 0.5], end, end + 1) for seed, end in enumerate(ends)]


def test_trainings_are_compared_seed_by_seed():
    entries = [*learned(PLAIN, 4.0, 5.0), *learned("L1", 4.5, 5.1), Learned("lean", 0)]
    results = Record("llm", MACHINE, SETTINGS, entries)
    # From 8 to 4.5 at the least, and to 5.5 with the other seed.
    assert fallen(results, "L1") == pytest.approx(((8 - 4.5) / (8 - 4.5) + (8 - 5.1) / (8 - 5.5)) / 2)
    assert fallen(results, "lean") is None
    text = words(results)
    # 0.5 and 0.1: their mean is 0.3, their standard deviation 0.4 / sqrt(2) = 0.2828; t of 1 degree is 12.706.
    assert "4.500, 5.100 +0.3000 [-2.2412, +2.8412] 0.2828 108 ✓ 5.800" in text


def test_the_chart_has_a_line_for_each_way():
    tokens = ("llama-512-tokens", "llama-32k", "lora-32k")
    cells = [Trained(name, way, peak=3 * MIB, gradients=MIB) for name in tokens for way in (PLAIN, CHUNKED)]
    failed = Trained("llama-2k-tokens", PLAIN, failure="none")
    [panel] = panels(Record("llm", MACHINE, SETTINGS, [*cells, failed]))  # a single number of tokens is no line
    assert [list(series.x) for series in panel.series] == [[512, 1024]] * 2
    assert [list(series.y) for series in panel.series] == [[2, 2]] * 2
    assert panels(Record("llm", MACHINE, SETTINGS, cells[:2])) == []
