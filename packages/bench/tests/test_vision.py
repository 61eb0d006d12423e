"""``python -m bench vision``: short runs on small data, and what is computed from its values."""

import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from bench.cli import main, suites
from bench.models import resnet20 as resnet
from bench.models.data import images
from bench.models.subject import Case
from bench.results.machine import Machine
from bench.results.record import Record
from bench.runner.memory import Memory
from bench.suites.vision import cell, training, variance
from bench.suites.vision import command as measure
from bench.suites.vision import training as step_time
from bench.suites.vision import training as tasks
from bench.suites.vision.entries import Ablated, StepTimes, Variance, VisionCurve, comparisons, noise_metrics
from bench.suites.vision.report import below, times_smaller
from bench.suites.vision.variance import GradientVariance, LayerVariance
from integrations.qmodules.layers import QLayer

from .rendering import printed

MACHINE = Machine("a processor", 2, "Linux", {}, "", False, "python", "today")
CIFAR = "CIFAR-10 subset (3,805 images)"


@pytest.fixture
def few(monkeypatch):
    """The first 96 digits, of which a batch is all, and one residual block of each width."""
    whole = images.digits()
    few = images.Images("digits", whole.x[:96], whole.y[:96], whole.test_x[:32], whole.test_y[:32])
    monkeypatch.setattr(images, "digits", lambda: few)
    monkeypatch.setattr(resnet, "BLOCKS", 1)
    return few


def test_a_run_prints_writes_and_draws(few, monkeypatch, tmp_path, capsys):
    file, picture = tmp_path / "out.json", tmp_path / "out.png"
    monkeypatch.setattr(variance, "STEPS", 2)
    parts = ["--part", "training", "--part", "variance", "--part", "ablation", "--part", "time"]
    command = ["vision", *parts, "--dataset", "digits", "--quick", "--repeats", "2", "--threads", "1"]
    assert main.main([*command, "--json", str(file), "--chart", str(picture)]) == 0
    printed = capsys.readouterr().out
    assert "Networks for images" in printed
    assert picture.read_bytes().startswith(b"\x89PNG")
    found = suites.load(file)
    assert [(curve.seed, curve.level) for curve in found.of(VisionCurve)] == [
        (seed, level) for seed in range(measure.QUICK_SEEDS) for level in ("L0", "Q-layers L3")
    ]
    assert [entry.name for entry in found.of(Variance)] == list(measure.VARIANCES)
    # 7 convolutions and 2 projections with a norm each, and the linear layer
    assert {len(entry.layers) for entry in found.of(Variance)} == {19}
    assert len(found.of(Ablated)) == 5
    assert all(one.commit for one in found.entries)
    assert [times.order for times in found.of(StepTimes)] == ["contiguous", "channels last"]
    assert {len(seconds) for times in found.of(StepTimes) for seconds in times.seconds.values()} == {
        measure.QUICK_ROUNDS
    }
    assert main.main(["show", str(file)]) == 0
    assert capsys.readouterr().out == printed


def test_each_part_is_written_when_it_is_done(few, monkeypatch, tmp_path):
    """Variances were written with the times, and lost when those were interrupted."""
    file = tmp_path / "out.json"
    monkeypatch.setattr(variance, "STEPS", 2)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(step_time, "measure_times", interrupted)
    command = ["vision", "--part", "variance", "--part", "time", "--dataset", "digits", "--repeats", "2"]
    assert main.main([*command, "--threads", "1", "--json", str(file)]) == 130
    assert [entry.name for entry in suites.load(file).of(Variance)] == list(measure.VARIANCES)


def test_the_recipe_has_the_momenta_that_are_used(few, monkeypatch):
    """It said 0.9, which the cycle of rates replaced."""
    used = []
    step = torch.optim.SGD.step

    def noted(self, *given, **options):
        used.append(self.param_groups[0]["momentum"])
        return step(self, *given, **options)

    monkeypatch.setattr(torch.optim.SGD, "step", noted)
    task = tasks.on_images(few)
    training.train(task, "L0", 0, 5)
    assert "momentum" not in task.recipe
    assert max(used) == task.recipe["momentum, most"]
    assert min(used) == pytest.approx(task.recipe["momentum, least"])


def test_resnet20_is_the_papers():
    model = resnet.resnet20()
    # 0.27 million parameters (table 6 of the paper), which counts no projections: 2 of 1 x 1 with norms are 2,752 more.
    assert sum(parameter.numel() for parameter in model.parameters()) == 269_722 + 2_752
    assert sum(isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3) for module in model.modules()) == 19
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_pairs_share_weights_and_batches(few):
    plain, same = (training.train(tasks.on_images(few), "L0", 3, 2) for _ in range(2))
    assert replace(plain, images_per_second=0.0) == replace(same, images_per_second=0.0)
    other = training.train(tasks.on_images(few), "L0", 4, 2)
    assert other.losses != plain.losses
    compressed = training.train(tasks.on_images(few), "Q-layers L3", 3, 2)
    assert len(compressed.losses) == 2
    assert compressed.losses != plain.losses
    # The first step has the same weights and the same batch, and the values of a forward are torch's own.
    one = replace(few, x=few.x[: tasks.BATCH], y=few.y[: tasks.BATCH])
    assert (
        training.train(tasks.on_images(one), "L0", 3, 1).losses
        == training.train(tasks.on_images(one), "Q-layers L3", 3, 1).losses
    )


def test_a_level_trains_in_q_layers(few, monkeypatch):
    seen = []
    monkeypatch.setattr(training, "_accuracy", lambda model, task, device: seen.append(model) or 0.0)
    training.train(tasks.on_images(few), "L0", 0, 1)
    training.train(tasks.on_images(few), "Q-layers L3", 0, 1)
    counts = [sum(isinstance(module, QLayer) for module in model.modules()) for model in seen]
    assert counts[0] == 0
    assert counts[1] >= 19


def test_memory_counts_what_the_graph_keeps():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
    x = torch.randn(64, 256)
    case = Case(model, lambda: model(x).square().mean(), "small")
    kept = [cell.measure_qlayers(Memory("resnet50", level), case) for level in ("L0", "L2")]
    # ReLU's output, and the network's, which square keeps; x is the caller's.
    assert kept[0].original_bytes == kept[1].original_bytes == 4 * (64 * 256 + 64 * 4)
    # Two inputs in 4 bits, their 64 groups with two float32 bounds each, ReLU's mask of a bit, the network's output,
    # and a scalar that has the shape of ReLU's input.
    assert kept[1].stored_bytes == 2 * (64 * 256 // 2 + 64 * 8) + 64 * 256 // 8 + 4 * 64 * 4 + 4
    assert [cell.level for cell in kept] == ["L0", "L2"]


def test_what_several_layers_save_is_counted_once():
    model = nn.ModuleList([nn.Linear(256, 256), nn.Linear(256, 256)])
    x = torch.randn(64, 256)
    case = Case(model, lambda: (model[0](x) + model[1](x)).sum(), "two branches")
    kept = [cell.measure_qlayers(Memory("resnet50", level), case) for level in ("L0", "L2")]
    assert kept[1].stored_bytes == 64 * 256 // 2 + 64 * 8


def test_the_larger_of_graph_and_allocator_counts():
    plain = Memory("resnet50", "L0", 110, None, 100)
    assert times_smaller(Memory("resnet50", "L2", 30, None, 100, 10), plain) == 5.0  # the allocator's 20
    assert times_smaller(Memory("resnet50", "L2", 18, None, 100, 10), plain) == 10.0  # the graph's
    assert times_smaller(Memory("resnet50", "L2", None, None, 100, 10, not_measured="no counters"), plain) == 10.0
    assert times_smaller(plain, plain) is None


def recorded(*entries, device="cpu", **settings):
    return Record("vision", MACHINE, {"device": device, "seed": 0, **settings}, list(entries))


def entry(name, share, *ratios, kind=Variance):
    layers = tuple(LayerVariance(f"{n}", "QConv2d", 2.0, 1.0, ratio, 1.0, 1.0, 0.0) for n, ratio in enumerate(ratios))
    return kind(name, **noise_metrics(GradientVariance(layers, 1.0, share, 0.0, 10)))


def test_what_is_judged():
    curves = [
        VisionCurve(level, seed, [2.0, loss], accuracy + seed)
        for seed in range(10)
        for level, loss, accuracy in (("L0", 1.0, 40.0), ("Q-layers L3", 1.02, 39.0 + seed % 2))
    ]
    entries = [
        Memory("resnet50", "L0", 110, 5, 100),
        Memory("resnet50", "L2", 26, 4, 100, 16),
        *curves,
        entry("L2", 0.1, 0.6, 1.9),
        entry("L3", 0.2, 0.4, 1.0),
        *(
            entry(name, share, kind=Ablated)
            for name, share in (("per tensor", 3.0), ("per group", 2.0), ("+ per sample", 2.5))
        ),
        StepTimes("contiguous", 8, [1.0, 2.0, 1.0], {"L2": [1.2, 2.4, 9.0]}),
    ]
    results = recorded(*entries, data=CIFAR)
    (reference, compared) = comparisons(results)
    assert reference.difference.mean == 0.0
    assert compared.difference.mean == -0.5
    assert compared.loss_ratio == pytest.approx(1.02)
    assert results.of(StepTimes)[0].ratio("L2") == pytest.approx(1.2)
    assert below(results) == [None, True, False]
    text = _text(results)
    for words in (
        "6.2 ✓",
        "1.000 ✓",
        "] ✓",
        "1.020 ✓",
        "2 of 2 ✓",
        "1 of 2 ✗",
        "2.5 ✗",
        "1.20 ✓",
    ):
        assert words in text
    assert "✓" not in _text(recorded(*curves, *results.of(Variance), data="digits (few)"))


def _text(results):
    return printed(results)


def test_missing_libraries_and_data_are_said_in_one_line(few, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "timm", None)
    assert main.main(["vision", "--part", "memory", "--quick", "--threads", "1"]) == 0
    assert "Left out: memory: timm cannot be imported" in " ".join(capsys.readouterr().out.split())
    monkeypatch.delenv("ACTCORE_DATA", raising=False)
    assert main.main(["vision", "--part", "time", "--quick", "--data-root", str(tmp_path)]) == 1
    assert f"there is no {images.FILE} in {tmp_path}" in capsys.readouterr().err
    assert main.main(["vision", "--part", "time", "--chart", str(tmp_path / "a.png")]) == 1
    assert "add --part variance" in capsys.readouterr().err
    assert main.main(["vision", "--part", "time", "--quick", "--rounds", "1", "--threads", "1"]) == 0
    assert "The built-in digits are used" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main.main(["vision", "--repeats", "1"])
    assert "must be a whole number from 2" in capsys.readouterr().err
