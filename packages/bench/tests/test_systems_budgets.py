"""What ``python -m bench systems`` says of plans: within budgets, in both states of the gradients, of their peaks."""

from dataclasses import replace

import pytest

from bench.cli import main, suites
from bench.results.record import Record, save
from bench.runner.child import here
from bench.suites.memory.systems import cell as cells
from bench.suites.memory.systems.entries import Cell, Fresh, as_fresh
from bench.suites.memory.systems.report import within_budgets
from bench.suites.memory.systems.subjects import BESIDE, NAMES, PEAK_SUBJECTS
from bench.ways.general import PEAK_WAYS, PLAIN, WAYS, planned_name

from .rendering import MACHINE, words

BLOCKS = "each block (torch)"
EXACT, ROUNDED = planned_name(0.5, 0), planned_name(0.5, 0.1)


def cell(way, peak, ratio, error=0.0, planned=None):
    fresh = Fresh(peak * 2, error, [ratio], [1.0], planned and planned * 2, 200)
    return Cell(
        "mlp", way, "an MLP", peak << 20, error, [ratio], [1.0], planned_bytes=planned and planned << 20, fresh=fresh
    )


def recorded(*found):
    return Record("systems", MACHINE, {"device": "cpu", "seed": 0}, list(found))


def results(*others):
    return recorded(cell(PLAIN, 100, 1.0), *others)


def only(found, bound=0.0):
    (one,) = [one for one in within_budgets(found, "mlp") if one.bound == bound]
    return one


def test_a_plan_is_beside_the_fastest_within_its_budget():
    found = only(results(cell(EXACT, 50, 1.1), cell(BLOCKS, 40, 1.2), cell("L1", 30, 1.05, 0.2), cell("L2", 60, 1.0)))
    assert found.rival.way == BLOCKS  # L1 rounds, L2 takes more memory
    assert found.ratio == pytest.approx(1.1 / 1.2)
    assert only(results(cell(EXACT, 50, 1.24), cell(BLOCKS, 51, 1.2))).ratio < 1.04  # 2 % more than a budget is within


def test_a_rounding_plan_has_rivals_of_its_error():
    found = only(results(cell(ROUNDED, 50, 1.1, 0.09), cell("L1", 30, 1.05, 0.2), cell(BLOCKS, 40, 1.01, 0.05)), 0.1)
    assert found.rival.way == BLOCKS


def test_what_misses_its_budget_is_no_plan():
    found = only(results(cell(EXACT, 60, 1.0), cell(BLOCKS, 50, 1.2)))
    assert found.plan is None
    alone = only(results(cell(EXACT, 60, 1.0)))
    assert alone.rival is None


def test_the_report_has_plans_beside_rivals():
    found = results(cell(EXACT, 50, 1.3, planned=40), cell(ROUNDED, 45, 1.2, 0.13, 45), cell(BLOCKS, 40, 1.1))
    text = words(found)
    for state in ("adding", "fresh"):
        assert f"50 %, {state} 0 1.30 1.10 1.18 {BLOCKS} *" in text
    assert f"mlp {EXACT} 40.0 1.250" in text  # measured over planned
    assert "an MLP: within a budget" in text


def test_a_cell_has_both_states_of_the_gradients(counted, tmp_path):
    found = here(cells.measure, Cell("mlp", EXACT), rounds=2, device="cpu", seed=0)
    assert not found.failure
    assert found.error == 0
    assert len(found.seconds) == len(found.fresh.seconds) == 2
    assert found.peak_bytes == found.fresh.peak_bytes == 1 << 20
    # The gradients that a fresh step makes are no part of its activation peak.
    assert found.fresh.planned_plain_bytes < found.planned_plain_bytes
    saved = recorded(found)
    save(saved, tmp_path / "out.json")
    assert suites.load(tmp_path / "out.json") == saved
    assert as_fresh(saved).find(Cell, subject="mlp", way=EXACT).seconds == found.fresh.seconds
    assert not as_fresh(recorded(replace(found, fresh=None))).entries


def test_a_budget_out_of_reach_does_not_apply(counted, monkeypatch):
    monkeypatch.setattr(cells, "WAYS", {**WAYS, "tiny": replace(WAYS[EXACT], ready=lambda s: _tiny(s))})
    found = here(cells.measure, Cell("mlp", "tiny"), rounds=0, device="cpu", seed=0)
    assert "memory" in found.does_not_apply
    assert not found.failure


def _tiny(subject):
    return WAYS[EXACT].ready.func(0.0001, 0.0, subject)


def test_peaks_are_of_twenty_models_and_of_plans(monkeypatch, capsys):
    asked = []

    def measured(processes, cell, request, seconds):
        asked.append((cell, request))
        return cell

    monkeypatch.setattr(cells.Processes, "measure", measured)
    assert main.main(["systems", "--part", "peaks", "--threads", "1"]) == 0
    assert {request.rounds for _, request in asked} == {0}
    assert {cell.way for cell, _ in asked} == set(PEAK_WAYS)
    models = {cell.subject for cell, _ in asked}
    assert models == {*BESIDE, *PEAK_SUBJECTS} <= set(NAMES)
    assert len(models) >= 20
