"""``python -m bench gnn``: what is taken up, what fails, and every level."""

import dataclasses
from argparse import Namespace

import pytest
import torch

from bench.cli import main, suites
from bench.cli.suites import BENCHES
from bench.errors import BenchError
from bench.models.graph_networks import Recipe
from bench.results.record import save
from bench.runner import child
from bench.runner.child import Ended
from bench.runner.memory import Memory
from bench.suites.gnn import command, training
from bench.suites.gnn import training as memory
from bench.suites.gnn.command import ALL_LEVELS
from bench.suites.gnn.entries import Curve
from bench.suites.gnn.report import rows
from bench.suites.gnn.training import Run, train_in_turn
from integrations import compression

from .gnn_records import replaced, text_of

CPU = torch.device("cpu")
OPTIONS = {
    "parts": ("train",),
    "models": ("gcn",),
    "levels": ("L1",),
    "dataset": "digits",
    "data_root": None,
    "device": "cpu",
    "seeds": 1,
    "epochs": 2,
    "threads": 1,
    "recipe": Recipe(hidden=16),
    "json": None,
    "anew": False,
}


def run(**options):
    return command.run(Namespace(**{**OPTIONS, **options}))


@pytest.fixture
def trained(monkeypatch):
    """What was trained, by model, levels and seed."""
    seen = []

    def spy(model, levels, seed, *rest):
        seen.append((model, list(levels), seed))
        return train_in_turn(model, levels, seed, *rest)

    monkeypatch.setattr(training, "train_in_turn", spy)
    return seen


@pytest.fixture
def measured(monkeypatch):
    seen = []

    def stand_in(wanted, *_):
        seen.append([(one.model, one.level) for one in wanted])
        sizes = {"live_bytes": 10, "peak_bytes": 20, "original_bytes": 8}
        return [dataclasses.replace(one, **sizes, failure="", not_measured="") for one in wanted]

    monkeypatch.setattr(memory, "measure", stand_in)
    return seen


# ---- taken up ----


def test_what_a_file_has_is_not_trained_again(tmp_path, trained):
    options = {"json": tmp_path / "out.json"}
    first = run(**options)
    assert trained == [("gcn", [None, "L1"], 0)]
    assert run(**options).of(Curve) == first.of(Curve)
    more = run(**{**options, "seeds": 2, "levels": ("L1", "L1.2"), "models": ("gcn", "sage")})
    # Another level of a seed that is there is compared with full precision anew, which keeps its first curve.
    assert trained[1:] == [
        ("gcn", [None, "L1.2"], 0),
        ("sage", [None, "L1", "L1.2"], 0),
        ("gcn", [None, "L1", "L1.2"], 1),
        ("sage", [None, "L1", "L1.2"], 1),
    ]
    assert [(curve.model, curve.level, curve.seed) for curve in more.of(Curve)] == [
        (model, level, seed) for model in ("gcn", "sage") for level in ("L0", "L1", "L1.2") for seed in (0, 1)
    ]
    assert [curve for curve in more.of(Curve) if curve in first.of(Curve)] == first.of(Curve)
    assert suites.load(options["json"]) == more
    assert all(curve.commit for curve in more.of(Curve))
    row = next(row for row in rows(more) if (row.model, row.level) == ("gcn", "L1.2"))
    late = next(curve for curve in more.of(Curve) if (curve.model, curve.level, curve.seed) == ("gcn", "L1.2", 0))
    plain = next(curve for curve in more.of(Curve) if (curve.model, curve.level, curve.seed) == ("gcn", "L0", 0))
    assert late.plain_seconds != plain.block_seconds, "times are compared with those of the same turns"
    assert row.time_ratio is not None


def test_an_interrupted_run_has_what_was_trained_before(tmp_path, monkeypatch, trained):
    options = {"json": tmp_path / "out.json", "models": ("gcn", "sage")}
    spy = training.train_in_turn

    def interrupted(model, *rest):
        if model == "sage":
            raise KeyboardInterrupt
        return spy(model, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(training, "train_in_turn", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(**options)
    assert {curve.model for curve in suites.load(options["json"]).of(Curve)} == {"gcn"}
    run(**options)
    assert [model for model, _, _ in trained] == ["gcn", "sage"]


def test_other_settings_are_another_file(tmp_path):
    options = {"json": tmp_path / "out.json", "epochs": 1}
    run(**options)
    for change in ({"epochs": 2}, {"recipe": Recipe(hidden=8)}):
        with pytest.raises(BenchError, match=r"out\.json holds results of another recipe;"):
            run(**{**options, **dict(**change)})
    assert len(run(**{**options, "epochs": 2, "anew": True}).of(Curve)[0].losses) == 2


def test_memory_is_taken_up_and_measured_again_where_it_failed(tmp_path, measured):
    options = {"json": tmp_path / "out.json", "parts": ("memory",)}
    first = run(**options)
    assert not first.of(Curve)
    results = suites.load(options["json"])
    failed = [dataclasses.replace(results.of(Memory)[1], live_bytes=None, not_measured="ended with code -9")]
    save(replaced(results, memories=[results.of(Memory)[0], *failed]), options["json"])
    again = run(**{**options, "levels": ("L1", "L1.2")})
    assert measured == [[("gcn", "L0"), ("gcn", "L1")], [("gcn", "L1"), ("gcn", "L1.2")]]
    assert [found.level for found in again.of(Memory)] == ["L0", "L1", "L1.2"]
    assert not any(found.not_measured for found in again.of(Memory))
    assert all(type(found) is Memory and found.commit for found in again.of(Memory))


# ---- what fails ----


def test_a_level_that_fails_is_recorded_and_the_others_go_on(graph, monkeypatch, tmp_path):
    step = Run._step

    def broken(run):
        if run.curve.level == "L1":
            raise RuntimeError("not enough memory")
        return step(run)

    monkeypatch.setattr(Run, "_step", broken)
    options = {"levels": ("L1", "L1.2"), "json": tmp_path / "out.json"}
    results = run(**options)
    plain, failed, other = results.of(Curve)
    assert failed.failure == "RuntimeError: not enough memory"
    assert len(plain.losses) == len(other.losses) == 2
    shown = text_of(results)
    assert "failed: RuntimeError: not enough memory" in shown
    monkeypatch.setattr(Run, "_step", step)
    assert not any(curve.failure for curve in run(**options).of(Curve))  # tried again


def test_full_precision_that_fails_leaves_the_levels(graph, monkeypatch):
    step = Run._step

    def broken(run):
        if run.curve.level == "L0":
            raise RuntimeError("not enough memory")
        return step(run)

    monkeypatch.setattr(Run, "_step", broken)
    plain, compressed = rows(run())
    assert plain.accuracy is None
    assert compressed.accuracy is not None
    assert compressed.difference is None
    assert compressed.time_ratio is None


def test_memory_of_a_level_that_fails_and_of_a_process_that_ends(monkeypatch):
    def ask(worker, request, seconds):
        if request["entry"]["level"] == "L1":
            raise Ended(-9, "")
        return {"entry": {**request["entry"], "live_bytes": 1}, "more": None}

    monkeypatch.setattr(child.Worker, "ask", ask)
    plain, failed = memory.measure([Memory("gcn", "L0"), Memory("gcn", "L1")], "digits", None, "cpu", 1)
    assert plain.live_bytes == 1
    assert "ended with code -9" in failed.failure


def test_what_cannot_be_built_is_said_before_anything_is_trained(trained):
    for recipe, words in ((Recipe(hidden=2), "--heads must be"), (Recipe(sample=9999), "--sample must be")):
        with pytest.raises(BenchError, match=words):
            run(models=("gat",), recipe=recipe)
    assert not trained


# ---- levels ----


def test_all_levels(monkeypatch, tmp_path):
    seen = []
    monkeypatch.chdir(tmp_path)

    def refused(options):
        seen.append(options)
        raise BenchError("")

    monkeypatch.setattr(main, "BENCHES", {"gnn": dataclasses.replace(BENCHES["gnn"], run=refused)})
    main.main(["gnn", "--level", "all", "--level", "swap", "--level", "L2"])
    assert tuple(seen[0].levels) == (*ALL_LEVELS, "swap")
    assert ALL_LEVELS == ("L1", "L1.1", "L1.2", "L2", "L2.1", "L2.2", "L3")


@pytest.mark.parametrize("model", ["gcn", "sage", "gat", "gcnii"])
def test_every_level_trains_every_model(model, graph):
    """And L3 on a CPU is L2, as the report says: its losses are the same, bit for bit."""
    recipe = Recipe(hidden=16, layers=3, adapt_interval=2)
    curves = train_in_turn(model, [None, *ALL_LEVELS], 0, graph, 4, recipe)
    assert not [curve.failure for curve in curves if curve.failure]
    losses = {curve.level: curve.losses for curve in curves}
    assert losses["L3"] == losses["L2"]
    fixed = ("L0", "L1", "L1.1", "L1.2")
    assert len({tuple(losses[level]) for level in fixed}) == len(fixed)
    assert all(found[0] == losses["L0"][0] for found in losses.values())


@pytest.mark.parametrize(("interval", "times"), [(2, 5), (20, 1)])
def test_levels_adapt_as_often_as_was_asked(interval, times, graph, monkeypatch):
    run = Run("gcn", "L2", 0, graph, Recipe(hidden=16, adapt_interval=interval))
    plans = []
    for _ in range(11):
        run.train(1)
        plan = compression(run.network).plan
        if plan is not None and not any(plan is one for one in plans):
            plans.append(plan)
    assert len(plans) == times


def test_a_report_says_what_is_generated_and_what_stays_on_a_cpu(results):
    levels = [dataclasses.replace(curve, level=curve.level.replace("L1", "L3")) for curve in results.of(Curve)]
    changed = replaced(results, curves=levels, memories=[], dataset="generated-arxiv")
    assert "L3: only tensors on a GPU go to host memory" in text_of(changed)
    assert "The graph is generated" in text_of(changed)
    assert "only tensors on a GPU" not in text_of(replaced(changed, device="cuda"))
    assert "only tensors on a GPU" not in text_of(results)
