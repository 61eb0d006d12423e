"""``python -m bench activations``: a short run on small models, and what is computed from its values."""

import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

import integrations
from bench.cli import main, suites
from bench.cli.suites import BENCHES
from bench.models.subject import Case
from bench.results.machine import Machine
from bench.results.record import Record, save
from bench.runner.gradients import relative_error
from bench.runner.memory import AGREEMENT, Memory, saved_bytes
from bench.suites.memory.activations import cell
from bench.suites.memory.activations import command as measure
from bench.suites.memory.activations.entries import Adaptation, InitialError, LevelResult, Overhead, alone_microseconds

from .rendering import printed


def small():
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    x = torch.randn(64, 32)
    return Case(model, lambda: model(x).square().mean(), "small")


@pytest.fixture
def quick(monkeypatch):
    """One small model in place of the real ones, and one short chain."""
    monkeypatch.setattr(cell, "MODELS", {"gcn": small})
    monkeypatch.setattr(cell, "CHAINS", {"linear": cell.CHAINS["linear"]})


def run(*levels, steps=2):
    return cell.measure_levels("gcn", levels, steps, 1)


def test_a_run_prints_and_writes(quick, tmp_path, capsys):
    file = tmp_path / "out.json"
    parts = ["--part", "models", "--part", "overhead", "--part", "adaptation"]  # the others are not so quick
    assert main.main(["activations", *parts, "--model", "gcn", "--quick", "--threads", "1", "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "Models under compression" in printed
    found = suites.load(file)
    levels = found.of(LevelResult)
    assert [entry.level for entry in found.of(Adaptation)] == ["L2"]
    assert len(found.of(Overhead)) == 1
    assert [level.level for level in levels] == list(measure.QUICK_LEVELS)
    assert {len(level.errors) for level in levels} == {measure.QUICK_STEPS}
    assert {len(times) for level in levels for times in (level.seconds, level.plain_seconds)} == {measure.QUICK_ROUNDS}
    assert main.main(["show", str(file)]) == 0
    assert capsys.readouterr().out == printed


def test_quick_is_small_unless_more_is_asked_for(monkeypatch):
    asked, known = [], dict(BENCHES)
    monkeypatch.setattr(main, "BENCHES", known)

    def run(options):
        asked.append((options.models, options.levels, options.parts))
        raise KeyboardInterrupt

    known["activations"] = replace(BENCHES["activations"], run=run)
    for more in ([], ["--model", "resnet18", "--level", "L1.1", "--part", "initial"]):
        assert main.main(["activations", "--quick", *more]) == 130
    small = list(measure.QUICK_MODELS), list(measure.QUICK_LEVELS), list(measure.QUICK_PARTS)
    assert asked == [small, (["resnet18"], ["L1.1"], ["initial"])]


def test_bytes_and_errors_of_a_small_model(quick):
    four, eight = run("L1", "L1.1", steps=3)
    # ReLU's results, which the next layers' inputs share; x is the caller's, and the loss is outside of the model.
    assert four.original_bytes == eight.original_bytes == 2 * 64 * 64 * 4
    assert four.stored_bytes < eight.stored_bytes < four.original_bytes
    assert all(0 < error < 1 for error in four.errors)
    assert max(eight.errors) < min(four.errors)  # steps of rounding are 17 times as small
    assert len(set(four.errors)) == 3  # other noise in each step


def test_a_level_that_keeps_everything_has_no_error(quick):
    (level,) = run("L0")
    assert level.errors == [0.0, 0.0]
    assert level.smaller == 1.0


def test_adaptive_levels_are_measured_with_their_plan(quick, monkeypatch):
    seen = []
    compression = integrations.compression
    monkeypatch.setattr(integrations, "compression", lambda model: seen.append(compression(model)) or seen[-1])
    run("L2", steps=1)
    assert seen[0].plan is not None
    assert "GroupAffine" in str([row.codec for row in seen[0].report().rows])


def test_a_graph_network_with_dropout():
    (level,) = run("L1.1")
    # Against another dropout mask the error would be near 1.
    assert level.error < 0.05


def test_missing_libraries_are_left_out_and_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "timm", None)
    monkeypatch.setattr(cell, "MODELS", {**cell.MODELS, "gcn": small})
    command = ["activations", "--part", "models", "--part", "initial", "--level", "L1", "--quick", "--threads", "1"]
    assert main.main([*command, "--model", "resnet18", "--model", "gcn"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Left out: resnet18: timm cannot be imported" in printed
    assert "Left out: initial: timm cannot be imported" in printed
    assert main.main(["activations", "--model", "vit_tiny", "--quick"]) == 1
    assert "no model can be measured: vit_tiny: timm" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "library"), [("resnet18", "timm"), ("bert", "transformers")])
def test_models_of_other_libraries(name, library):
    pytest.importorskip(library)
    case, _ = cell.made(name)
    assert case.model.training
    assert case.loss().requires_grad


@pytest.mark.parametrize(
    ("chain", "packed"),
    [
        ("scale", 0),
        ("linear", 3),  # the inputs of all but the first, which is the caller's
        ("linear, relu", 7),  # and ReLU's result
        ("linear, gelu", 7),  # and GELU's input
        ("layer_norm, linear", 7),  # and the norm's input
    ],
)
def test_overhead_counts_what_is_packed(chain, packed):
    found = cell.measure_overhead(chain, rounds=2, layers=4)
    assert found.packed == packed
    assert found.saved > packed
    assert len(found.seconds) == len(found.plain_seconds) == 2


def test_what_is_computed():
    exact = [torch.tensor([0.0]), torch.tensor([4.0])]
    assert relative_error([torch.tensor([3.0]), torch.tensor([4.0])], exact) == 0.75
    level = LevelResult("a", "L1", "", 100, 20, [0.1, 0.3], [2.0, 3.0, 8.0], [1.0, 2.0, 2.0])
    assert (level.smaller, level.error, level.ratio) == (5.0, pytest.approx(0.2), 2.0)
    entry = Overhead("a", 2048, 20, 10, [1.0, 1.0, 1.0], [1.001, 1.002, 9.0], [1e-6, 2e-6, 9.0])
    assert entry.step_microseconds == pytest.approx(2000)
    assert entry.saved_microseconds == pytest.approx(100)
    alone = Overhead("b", 2048, 10, 0, [1.0], [1.00005], [1e-6])
    assert alone_microseconds([entry, alone]) == pytest.approx(5)
    assert alone_microseconds([entry]) is None
    assert entry.packed_microseconds(5.0) == pytest.approx(2000 / 10 - 5 - 2)
    assert entry.codec_microseconds == pytest.approx(2)


def test_signs_say_what_is_reached():
    def model(name, ratio, error, seconds):
        return LevelResult(name, "L1", "", ratio, 1, [error], [seconds], [1.0])

    machine = Machine("a processor", 2, "Linux", {}, "", False, "python", "today")
    models = [model("bert", 6, 0.1, 1.1), model("resnet18", 4, 0.2, 1.3), model("gcn", 4, 0.1, 9.0)]
    text = printed(Record("activations", machine, entries=models))
    rows = [line for line in text.splitlines() if " L1 " in line]
    assert [[row.count(sign) for sign in "✓✗"] for row in rows if row.startswith("  ")] == [[3, 0], [0, 3], [1, 1]]


# ---- parts ----


def test_parts_are_run_alone(monkeypatch, capsys):
    monkeypatch.setattr(cell, "MODELS", ())
    assert main.main(["activations", "--part", "initial", "--quick", "--threads", "1"]) == 0
    printed = capsys.readouterr().out
    assert "overhead" not in printed
    assert "step time" not in printed
    assert main.main(["activations", "--part", "memory", "--chart", "out.png"]) == 1
    assert "a chart shows the part models" in capsys.readouterr().err


@pytest.fixture(scope="module")
def held():
    """A real model, since a child process sees nothing of what is patched here."""
    return cell.measure_memory("gcn", ["L1"], 1)


def test_memory_is_that_of_the_process(held):
    plain, compressed = held
    if plain.not_measured:
        pytest.skip(f"memory cannot be measured here: {plain.not_measured}")
    assert (plain.level, compressed.level) == ("L0", "L1")
    saved = plain.live_bytes - compressed.live_bytes
    assert saved == pytest.approx(plain.original_bytes - compressed.stored_bytes, rel=AGREEMENT)
    # The peak is measured beside it, where freed blocks go back to the kernel.
    assert plain.original_bytes < plain.peak_bytes


def test_what_the_untouched_model_saves_is_counted_without_compression(quick):
    case, _ = cell.made("gcn")
    # ReLU's results and, outside of the model, the output; not x, which is the caller's, and no weights.
    assert saved_bytes(case.model, case.loss) == 2 * 64 * 64 * 4 + 64 * 4 * 4


def test_agreement_leaves_out_what_else_lives():
    plain = Memory("a", "L0", live_bytes=120, peak_bytes=None, original_bytes=100)
    assert Memory("a", "L1", 45, None, 100, 20).agreement(plain) == 1.25  # 20 live beside what is saved
    assert Memory("a", "L1", 45, None, 90, 20).agreement(plain) == 1.25  # a level that replaces attention
    assert Memory("a", "L1", None, None, 90, 20).agreement(plain) is None


def test_every_measured_step_makes_a_plan(quick):
    found = cell.measure_adaptation("gcn", "L2", rounds=3)
    assert len(found.seconds) == len(found.adapting_seconds) == 3
    assert found.interval == 1000


def test_an_image_model_as_it_is_made():
    pytest.importorskip("timm")
    four, eight = cell.measure_initial("mobilenetv3_small_100", steps=2)
    assert (four.level, eight.level) == ("L1", "L1.1")
    assert max(eight.errors) < min(four.errors)


def test_what_parts_compute():
    entry = Adaptation("a", "L2", 1000, [1.0, 1.0, 2.0], [3.0, 4.0, 2.0])
    assert entry.steps == 3.0
    assert entry.share == pytest.approx(0.002)
    assert InitialError("a", "L1", "", [0.1, 0.3]).error == pytest.approx(0.2)


def test_parts_print_and_come_back(tmp_path, capsys):
    machine = Machine("a processor", 2, "Linux", {}, "", False, "python", "today")
    entries = [
        Memory("bert", "L0", 12 * 2**20, 9 * 2**20, 10 * 2**20),
        Memory("bert", "L1", 4 * 2**20, None, 10, 2 * 2**20),
        Adaptation("bert", "L2", 1000, [0.001], [0.004]),
        InitialError("resnet18", "L1", "batch 4", [0.2]),
        InitialError("resnet18", "L1.1", "batch 4", [0.04]),
    ]
    results = Record("activations", machine, entries=entries)
    save(results, tmp_path / "out.json")
    assert suites.load(tmp_path / "out.json") == results
    assert main.main(["show", str(tmp_path / "out.json")]) == 0
    printed = capsys.readouterr().out
    for part in ("1.000 ✓", "4.0", "0.3%", "0.200 ✗", "0.040 ✓"):
        assert part in printed, part
    assert main.main(["show", str(tmp_path / "out.json"), "--chart", str(tmp_path / "out.png")]) == 1
    assert "there is nothing to draw" in capsys.readouterr().err


def test_what_a_file_lacks_is_measured(quick, tmp_path, monkeypatch):
    file = tmp_path / "out.json"
    command = ["activations", "--part", "models", "--model", "gcn", "--steps", "1", "--threads", "1"]
    assert main.main([*command, "--rounds", "1", "--level", "L1", "--json", str(file)]) == 0
    first = suites.load(file).entries
    assert main.main([*command, "--rounds", "1", "--level", "L1", "--level", "L1.1", "--json", str(file)]) == 0
    assert suites.load(file).entries[:1] == first
    assert [entry.level for entry in suites.load(file).entries] == ["L1", "L1.1"]
    assert main.main([*command, "--rounds", "2", "--level", "L1", "--json", str(file)]) == 0
    assert [len(entry.seconds) for entry in suites.load(file).entries] == [2, 1]
