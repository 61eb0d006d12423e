"""``python -m bench activations``: a short run on small models, and what is computed from its values."""

import sys

import pytest
import torch
from torch import nn

from bench import cli, records
from bench.activations import measure, overhead, report
from bench.activations.results import ActivationResults, LevelResult, ModelResult, Overhead
from bench.gradients import relative_error
from bench.machine import Machine
from bench.networks import Case


def small():
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    x = torch.randn(64, 32)
    return Case(model, lambda: model(x).square().mean(), "small")


@pytest.fixture
def quick(monkeypatch):
    """One small model in place of the real ones, and one short chain."""
    monkeypatch.setattr(measure, "MODELS", {"gcn": small})
    monkeypatch.setattr(overhead, "CHAINS", {"linear": overhead.CHAINS["linear"]})


def run(*levels, steps=2):
    return measure.run(measure.Options(["gcn"], levels, steps, 1, 1))


def test_a_run_prints_and_writes(quick, tmp_path, capsys):
    file = tmp_path / "out.json"
    assert cli.main(["activations", "--model", "gcn", "--quick", "--threads", "1", "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "Models under compression" in printed
    found = records.load(file)
    assert isinstance(found, ActivationResults)
    (model,) = found.models
    assert [level.level for level in model.levels] == list(measure.LEVELS)
    assert {len(level.errors) for level in model.levels} == {measure.QUICK_STEPS}
    assert {len(level.seconds) for level in model.levels} == {len(model.plain_seconds)} == {measure.QUICK_ROUNDS}
    assert cli.main(["show", str(file)]) == 0
    assert capsys.readouterr().out == printed


def test_bytes_and_errors_of_a_small_model(quick):
    (model,) = run("L1", "L1.1", steps=3).models
    four, eight = model.levels
    # ReLU's results, which the next layers' inputs share; x is the caller's, and the loss is outside of the model.
    assert four.original_bytes == eight.original_bytes == 2 * 64 * 64 * 4
    assert four.stored_bytes < eight.stored_bytes < four.original_bytes
    assert all(0 < error < 1 for error in four.errors)
    assert max(eight.errors) < min(four.errors)  # steps of rounding are 17 times as small
    assert len(set(four.errors)) == 3  # other noise in each step


def test_a_level_that_keeps_everything_has_no_error(quick):
    (model,) = run("L0").models
    (level,) = model.levels
    assert level.errors == [0.0, 0.0]
    assert level.ratio == 1.0


def test_adaptive_levels_are_measured_with_their_plan(quick, monkeypatch):
    seen = []
    compression = measure.integrations.compression
    monkeypatch.setattr(measure.integrations, "compression", lambda model: seen.append(compression(model)) or seen[-1])
    run("L2", steps=1)
    assert seen[0].plan is not None
    assert "GroupAffine" in str([row.codec for row in seen[0].report().rows])


def test_a_graph_network_with_dropout(monkeypatch):
    monkeypatch.setattr(overhead, "CHAINS", {})
    (model,) = run("L1.1").models
    # Against another dropout mask the error would be near 1.
    assert model.levels[0].error < 0.05


def test_missing_libraries_are_left_out_and_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "timm", None)
    monkeypatch.setattr(measure, "MODELS", {**measure.MODELS, "gcn": small})
    monkeypatch.setattr(overhead, "CHAINS", {})
    command = ["activations", "--model", "resnet18", "--model", "gcn", "--level", "L1", "--quick", "--threads", "1"]
    assert cli.main(command) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Left out: resnet18: timm cannot be imported" in printed
    assert cli.main(["activations", "--model", "vit_tiny", "--quick"]) == 1
    assert "no model can be measured: vit_tiny: timm" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "library"), [("resnet18", "timm"), ("bert", "transformers")])
def test_models_of_other_libraries(name, library):
    pytest.importorskip(library)
    case, _ = measure._made(name)
    assert case.model.training
    assert case.loss().requires_grad


@pytest.mark.parametrize(
    ("chain", "packed"),
    [
        ("linear", 3),  # the inputs of all but the first, which is the caller's
        ("linear, relu", 7),  # and ReLU's result
        ("linear, gelu", 7),  # and GELU's input
        ("layer_norm, linear", 7),  # and the norm's input
    ],
)
def test_overhead_counts_what_is_packed(chain, packed):
    found = overhead.measure(chain, rounds=2, layers=4)
    assert found.packed == packed
    assert found.saved > packed
    assert len(found.seconds) == len(found.plain_seconds) == 2


def test_what_is_computed():
    exact = [torch.tensor([0.0]), torch.tensor([4.0])]
    assert relative_error([torch.tensor([3.0]), torch.tensor([4.0])], exact) == 0.75
    level = LevelResult("L1", 100, 20, [0.1, 0.3], [2.0, 3.0, 8.0])
    assert (level.ratio, level.error) == (5.0, pytest.approx(0.2))
    assert ModelResult("a", "", [1.0, 2.0, 2.0], [level]).time_ratio(level) == 2.0
    entry = Overhead("a", 2048, 20, 10, [1.0, 1.0, 1.0], [1.001, 1.002, 9.0], [1e-6, 2e-6, 9.0])
    assert entry.step_microseconds == pytest.approx(2000)
    assert entry.packed_microseconds == pytest.approx(200)
    assert entry.saved_microseconds == pytest.approx(100)
    assert entry.codec_microseconds == pytest.approx(2)


def test_signs_say_what_is_reached(capsys):
    def model(name, ratio, error, seconds):
        return ModelResult(name, "", [1.0], [LevelResult("L1", ratio, 1, [error], [seconds])])

    machine = Machine("a processor", 2, "Linux", {}, "", False, "python", "today")
    models = [model("bert", 6, 0.1, 1.2), model("resnet18", 4, 0.2, 1.3), model("gcn", 4, 0.1, 9.0)]
    cli.console().print(report.render(ActivationResults(machine, models, [], [], 1.0)))
    rows = [line for line in capsys.readouterr().out.splitlines() if " L1 " in line and "least" not in line]
    assert [[row.count(sign) for sign in "✓✗"] for row in rows if row.startswith("  ")] == [[3, 0], [0, 3], [1, 0]]


def test_there_is_no_chart(tmp_path, capsys):
    machine = Machine("a processor", 2, "Linux", {}, "", False, "python", "today")
    records.save(ActivationResults(machine, [], [], [], 1.0), tmp_path / "out.json")
    assert cli.main(["show", str(tmp_path / "out.json"), "--chart", "out.png"]) == 1
    assert "no chart of" in capsys.readouterr().err
