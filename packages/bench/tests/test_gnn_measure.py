"""``python -m bench gnn``: what is taken up, what fails, and every level."""

import dataclasses
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from bench import cli, records
from bench.errors import BenchError
from bench.gnn import measure, memory, training
from bench.gnn.command import ALL_LEVELS
from bench.gnn.recipe import Recipe
from bench.gnn.report import render
from bench.gnn.summary import rows
from bench.gnn.training import Run, train_in_turn
from bench.memory import Memory
from integrations import compression

CPU = torch.device("cpu")
OPTIONS = measure.Options(
    parts=("train",),
    models=("gcn",),
    levels=("L1",),
    dataset="digits",
    data_root=None,
    device=CPU,
    seeds=1,
    epochs=2,
    threads=1,
    recipe=Recipe(hidden=16),
)


def nothing(what, epochs):
    pass


def text_of(results):
    file = StringIO()
    Console(file=file, width=132).print(render(results))
    return file.getvalue()


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

    def stand_in(models, levels, *_):
        seen.append((list(models), list(levels)))
        return [Memory(models[0], level or "L0", 10, 20, 8, None if level is None else 2) for level in levels]

    monkeypatch.setattr(memory, "measure", stand_in)
    return seen


# ---- taken up ----


def test_what_a_file_has_is_not_trained_again(tmp_path, trained):
    options = dataclasses.replace(OPTIONS, json=tmp_path / "out.json")
    first = measure.run(options)
    assert trained == [("gcn", [None, "L1"], 0)]
    assert measure.run(options).curves == first.curves
    more = measure.run(dataclasses.replace(options, seeds=2, levels=("L1", "L1.2"), models=("gcn", "sage")))
    # Another level of a seed that is there is compared with full precision anew, which keeps its first curve.
    assert trained[1:] == [
        ("gcn", [None, "L1.2"], 0),
        ("sage", [None, "L1", "L1.2"], 0),
        ("gcn", [None, "L1", "L1.2"], 1),
        ("sage", [None, "L1", "L1.2"], 1),
    ]
    assert [(curve.model, curve.level, curve.seed) for curve in more.curves] == [
        (model, level, seed) for model in ("gcn", "sage") for level in ("L0", "L1", "L1.2") for seed in (0, 1)
    ]
    assert [curve for curve in more.curves if curve in first.curves] == first.curves
    assert records.load(options.json) == more
    assert all(curve.commit for curve in more.curves)
    row = next(row for row in rows(more) if (row.model, row.level) == ("gcn", "L1.2"))
    late = next(curve for curve in more.curves if (curve.model, curve.level, curve.seed) == ("gcn", "L1.2", 0))
    plain = next(curve for curve in more.curves if (curve.model, curve.level, curve.seed) == ("gcn", "L0", 0))
    assert late.plain_seconds != plain.block_seconds, "times are compared with those of the same turns"
    assert row.time_ratio is not None


def test_an_interrupted_run_has_what_was_trained_before(tmp_path, monkeypatch, trained):
    options = dataclasses.replace(OPTIONS, json=tmp_path / "out.json", models=("gcn", "sage"))
    spy = training.train_in_turn

    def interrupted(model, *rest):
        if model == "sage":
            raise KeyboardInterrupt
        return spy(model, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(training, "train_in_turn", interrupted)
        with pytest.raises(KeyboardInterrupt):
            measure.run(options)
    assert {curve.model for curve in records.load(options.json).curves} == {"gcn"}
    measure.run(options)
    assert [model for model, _, _ in trained] == ["gcn", "sage"]


def test_other_settings_are_another_file(tmp_path):
    options = dataclasses.replace(OPTIONS, json=tmp_path / "out.json", epochs=1)
    measure.run(options)
    for change in ({"epochs": 2}, {"recipe": Recipe(hidden=8)}):
        with pytest.raises(BenchError, match=r"out\.json holds other results, .* machine, data, recipe"):
            measure.run(dataclasses.replace(options, **change))
    assert len(measure.run(dataclasses.replace(options, epochs=2, anew=True)).curves[0].losses) == 2


def test_memory_is_taken_up_and_measured_again_where_it_failed(tmp_path, measured):
    options = dataclasses.replace(OPTIONS, json=tmp_path / "out.json", parts=("memory",))
    first = measure.run(options)
    assert not first.curves
    results = records.load(options.json)
    failed = [dataclasses.replace(results.memories[1], live_bytes=None, not_measured="ended with code -9")]
    records.save(dataclasses.replace(results, memories=[results.memories[0], *failed]), options.json)
    again = measure.run(dataclasses.replace(options, levels=("L1", "L1.2")))
    assert measured == [(["gcn"], [None, "L1"]), (["gcn"], ["L1", "L1.2"])]
    assert [found.level for found in again.memories] == ["L0", "L1", "L1.2"]
    assert not any(found.not_measured for found in again.memories)
    assert all(type(found) is Memory and found.commit for found in again.memories)


# ---- what fails ----


def test_a_level_that_fails_is_recorded_and_the_others_go_on(graph, monkeypatch, tmp_path):
    step = Run._step

    def broken(run):
        if run.curve.level == "L1":
            raise RuntimeError("not enough memory")
        return step(run)

    monkeypatch.setattr(Run, "_step", broken)
    options = dataclasses.replace(OPTIONS, levels=("L1", "L1.2"), json=tmp_path / "out.json")
    results = measure.run(options)
    plain, failed, other = results.curves
    assert failed.failure == "RuntimeError: not enough memory"
    assert len(plain.losses) == len(other.losses) == 2
    shown = text_of(results)
    assert "failed: RuntimeError: not enough memory" in shown
    monkeypatch.setattr(Run, "_step", step)
    assert not any(curve.failure for curve in measure.run(options).curves)  # tried again


def test_full_precision_that_fails_leaves_the_levels(graph, monkeypatch):
    step = Run._step

    def broken(run):
        if run.curve.level == "L0":
            raise RuntimeError("not enough memory")
        return step(run)

    monkeypatch.setattr(Run, "_step", broken)
    plain, compressed = rows(measure.run(OPTIONS))
    assert plain.accuracy is None
    assert compressed.accuracy is not None
    assert compressed.difference is None
    assert compressed.time_ratio is None


def test_memory_of_a_level_that_fails_and_of_a_process_that_ends(monkeypatch):
    """A child that answers for all; where it ends, one for each model and level."""
    asked = []

    def in_child(module, request):
        asked.append(request["cells"])
        if ("gcn", "L1") in request["cells"]:
            raise BenchError("the process that measures memory ended with code -9: it wrote nothing")
        return [Memory(model, level or "L0", 1, 1) for model, level in request["cells"]]

    monkeypatch.setattr(memory, "in_child", in_child)
    plain, failed = memory.measure(["gcn"], [None, "L1"], "digits", None, CPU, 1)
    assert asked == [[("gcn", None), ("gcn", "L1")], [("gcn", None)], [("gcn", "L1")]]
    assert plain.live_bytes == 1
    assert "ended with code -9" in failed.not_measured


def test_what_cannot_be_built_is_said_before_anything_is_trained(trained):
    for recipe, words in ((Recipe(hidden=2), "--heads must be"), (Recipe(sample=9999), "--sample must be")):
        with pytest.raises(BenchError, match=words):
            measure.run(dataclasses.replace(OPTIONS, models=("gat",), recipe=recipe))
    assert not trained


# ---- levels ----


def test_all_levels(monkeypatch, tmp_path):
    seen = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measure, "run", lambda options: seen.append(options) or (_ for _ in ()).throw(BenchError("")))
    cli.main(["gnn", "--level", "all", "--level", "swap", "--level", "L2"])
    assert tuple(seen[0].levels) == (*ALL_LEVELS, "swap")
    assert ALL_LEVELS == ("L1", "L1.1", "L1.2", "L2", "L2.1", "L2.2", "L3")


@pytest.mark.parametrize("model", ["gcn", "sage", "gat", "gcnii"])
def test_every_level_trains_every_model(model, graph):
    """And L3 on a CPU is L2, as the report says: its losses are the same, bit for bit."""
    recipe = Recipe(hidden=16, layers=3, adapt_interval=2)
    curves = train_in_turn(model, [None, *ALL_LEVELS], 0, graph, 4, nothing, recipe)
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
    levels = [dataclasses.replace(curve, level=curve.level.replace("L1", "L3")) for curve in results.curves]
    changed = dataclasses.replace(results, dataset="generated-arxiv", curves=levels, memories=[])
    assert "L3: only tensors on a GPU go to host memory" in text_of(changed)
    assert "The graph is generated" in text_of(changed)
    assert "only tensors on a GPU" not in text_of(dataclasses.replace(changed, device="cuda"))
    assert "only tensors on a GPU" not in text_of(results)


def test_results_of_before_there_was_a_room_load_and_show(capsys):
    file = Path(__file__).parents[1] / "results" / "gnn-cpu.json"
    assert cli.main(["show", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "accuracy on" in shown
    assert "memory on" in shown
    found = {(row.model, row.level): row for row in rows(records.load(file))}
    assert {model for model, _ in found} >= {"gcn", "sage", "gat"}
    row = found["gcn", "L1"]
    assert row.time_ratio is not None
    assert row.ratio > 5
