"""Training of ``python -m bench vision`` on a folder of images, and in the ways of hooks."""

import sys
from dataclasses import replace

import pytest
import torch

from bench.cli import main, suites
from bench.errors import BenchError
from bench.models.data import image_folder as folder
from bench.results.record import Record
from bench.suites.vision import training
from bench.suites.vision import training as tasks
from bench.suites.vision.entries import VisionCurve, comparisons


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Six images of two classes for training, and two for test."""
    pytest.importorskip("torchvision", exc_type=(ImportError, RuntimeError))
    pillow = pytest.importorskip("PIL.Image")
    root = tmp_path_factory.mktemp("pictures")
    generator = torch.Generator().manual_seed(0)
    for part, count in (("train", 3), ("val", 1)):
        for name in ("cats", "dogs"):
            (root / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = torch.randint(256, (40, 48, 3), generator=generator, dtype=torch.uint8)
                pillow.fromarray(pixels.numpy()).save(root / part / name / f"{number}.png")
    return root


def test_a_folder_is_read(pictures):
    found = folder.load(pictures, 32, 0)
    assert str(found).endswith("(6 images for training, 2 for test, 2 classes, 32 x 32)")
    assert found.steps(4) == 1
    epochs = []
    for _ in range(2):
        torch.manual_seed(0)
        [(x, y)] = found.batches(4, torch.Generator().manual_seed(0))
        epochs.append(x)
    assert x.shape == (4, 3, 32, 32)
    assert y.shape == (4,)
    assert torch.equal(*epochs)
    [(other, _)] = found.batches(4, torch.Generator().manual_seed(0))  # torch's generator has gone on
    assert not torch.equal(x, other)
    # What is tested on is cut from the middle, and so always the same; scaled to about mean 0 and variance 1.
    (first, classes), (second, _) = (next(iter(found.tests(2))) for _ in range(2))
    assert torch.equal(first, second)
    assert classes.tolist() == [0, 1]
    assert first.abs().max() < 3  # (1 - 0.406) / 0.225 is the most
    # A batch that is larger than all images has all of them.
    assert found.steps(8) == 1
    assert [len(y) for _, y in found.batches(8, torch.Generator())] == [6]


def test_what_is_wrong_with_a_folder(pictures, tmp_path):
    with pytest.raises(BenchError, match="--data-root must name a folder"):
        folder.load(None, 32, 0)
    with pytest.raises(BenchError, match=f"there is no train/ and no val/ in {tmp_path}"):
        folder.load(tmp_path, 32, 0)
    for part in ("train", "val"):
        (tmp_path / part).mkdir()
    with pytest.raises(BenchError, match="holds no images in folders of classes"):
        folder.load(tmp_path, 32, 0)
    for part, name in (("train", "cats"), ("val", "birds")):
        (tmp_path / part / name).mkdir()
        source = pictures / "train" / "cats" / "0.png"
        (tmp_path / part / name / "0.png").write_bytes(source.read_bytes())
    with pytest.raises(BenchError, match="must have the same classes, got 1 and 1 of which 0 are in both"):
        folder.load(tmp_path, 32, 0)


def test_a_run_on_a_folder(pictures, tmp_path, capsys, monkeypatch):
    file = tmp_path / "out.json"
    command = [
        "vision",
        "--dataset",
        "imagefolder",
        "--data-root",
        str(pictures),
        "--model",
        "resnet18",
        "--size",
        "32",
    ]
    command += [
        "--way",
        "L1",
        "--way",
        "Q-layers L3",
        "--seeds",
        "1",
        "--epochs",
        "2",
        "--batch",
        "3",
        "--threads",
        "1",
    ]
    command += ["--json", str(file)]
    assert main.main(command) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "resnet18 full precision 1 " in printed
    found = suites.load(file)
    assert [(run.model, run.level, len(run.losses)) for run in found.of(VisionCurve)] == [
        ("resnet18", "L0", 2),
        ("resnet18", "L1", 2),
        ("resnet18", "Q-layers L3", 2),
    ]
    plain, *others = found.of(VisionCurve)
    assert all(run.images_per_second > 0 and run.accuracy in (0.0, 50.0, 100.0) for run in found.of(VisionCurve))
    assert all(run.losses != plain.losses for run in others)
    assert found.settings["recipe"]["batch of resnet18"] == 3
    # The runs are there; another seed is trained, and a way that fails is said.
    trained = []
    train = training.train

    def broken(task, way, seed, *others):
        trained.append((way, seed))
        if way == "L1":
            raise ZeroDivisionError("of this way")
        return train(task, way, seed, *others)

    monkeypatch.setattr(training, "train", broken)
    assert main.main([*command, "--seeds", "2"]) == 0
    assert trained == [("L0", 1), ("L1", 1), ("Q-layers L3", 1)]
    assert "L1, 1, resnet18: failed: ZeroDivisionError: of this way." in " ".join(capsys.readouterr().out.split())
    assert len(suites.load(file).of(VisionCurve)) == 6
    trained.clear()
    assert main.main([*command, "--seeds", "2"]) == 0
    assert trained == [("L1", 1)]  # what failed is tried again, and is there once
    assert len(suites.load(file).of(VisionCurve)) == 6
    capsys.readouterr()
    assert main.main([*command, "--epochs", "3"]) == 1
    assert "results of another recipe (epochs)" in capsys.readouterr().err


def test_the_first_step_is_the_same_in_every_way(pictures):
    """The weights and the batch are, and a forward's values are those of torch's own layers."""
    task = tasks.on_folder("resnet18", folder.load(pictures, 32, 0), 6)
    exact, hooks, layers = (training.train(task, way, 0, 1).losses for way in ("L0", "L1", "Q-layers L3"))
    assert exact == hooks == layers


def test_which_parts_a_folder_is_for(capsys, tmp_path, monkeypatch):
    command = ["vision", "--dataset", "imagefolder", "--data-root", str(tmp_path), "--part"]
    assert main.main([*command, "time"]) == 1
    assert "is for the part training, got time" in capsys.readouterr().err
    assert main.main([*command, "memory"]) == 1
    assert "add --part training" in capsys.readouterr().err
    for part in ("train", "val"):
        (tmp_path / part).mkdir()
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    assert main.main([*command, "training"]) == 1
    assert "torchvision.datasets cannot be imported" in capsys.readouterr().err


def test_runs_are_compared_in_pairs():
    runs = [
        VisionCurve("L0", 0, [2.0], 50.0, images_per_second=10.0),
        VisionCurve("L0", 1, failure="it ended"),
        VisionCurve("L1", 0, [3.0], 40.0, images_per_second=5.0),
        VisionCurve("L1", 1, [9.0], 90.0, images_per_second=9.0),
        VisionCurve("L1", 0, [7.0], 70.0, model="resnet50"),
    ]
    exact, compared = comparisons(
        Record("vision", None, entries=runs)
    )  # ResNet-50 has no run at full precision, and seed 1 no pair
    assert (compared.level, compared.accuracies, compared.loss_ratio, compared.speed) == ("L1", [40.0], 1.5, 0.5)
    assert replace(exact, speed=None).images_per_second == 10.0
