"""The part ``dense`` of ``python -m bench vision``: models, cells, what is taken up, and the report."""

from dataclasses import asdict, replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bench.cli import main, suites
from bench.errors import MissingLibrary
from bench.models.dense import DENSE, MOMENTUM, TEMPERATURE, DenseModel, MoCo
from bench.results.record import Record
from bench.runner.child import here
from bench.suites.vision import cell
from bench.suites.vision import command as dense
from bench.suites.vision.cell import Settings
from bench.suites.vision.compression_tables import PUBLISHED
from bench.suites.vision.entries import DenseCell
from bench.ways.conversions import PLAIN

from .rendering import MACHINE, words


def missing(name):
    raise MissingLibrary("torchvision cannot be imported")


SETTINGS = Settings("cpu", 1, 0, 1 << 34)
PLAIN_CELL = DenseCell("fcn_resnet50", PLAIN, 2, 160, False, 1010, 1000, None, 800, 900)


class Still:
    """Counts nothing: the real counters need a process that was started for them."""

    def live(self):
        return 0

    start_peak = peak = live


class Tiny(nn.Sequential):
    """Classes of pixels, with dropout."""

    def __init__(self):
        layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5)]
        super().__init__(*layers, nn.Conv2d(8, 19, 1))


@pytest.fixture
def tiny(monkeypatch):
    """In the place of FCN two convolutions."""
    model = DenseModel(
        "a tiny one", lambda size, device: Tiny().train(), DENSE["fcn_resnet50"].batch, {"cpu": 2}, {"cpu": 16}
    )
    monkeypatch.setattr(cell, "DENSE", {"fcn_resnet50": model})
    monkeypatch.setattr(cell, "counters", lambda device: Still())
    monkeypatch.setattr(cell, "limit_allocation", lambda nbytes: None)  # of a process that ends thereafter


def measured(way, counted="live"):
    blank = DenseCell("fcn_resnet50", way, 2, 16)
    return here(cell.measure_dense, blank, settings=asdict(SETTINGS), counted=counted)


def text_of(found):
    return words(Record("vision", MACHINE, {"device": "cpu", "seed": 0}, found))


def test_bytes_and_the_gradients_error(tiny):
    plain = measured(PLAIN)
    assert not plain.failure
    assert plain.gradient_error is None
    for way in ("L2", "Q-layers L3"):
        found = measured(way)
        assert not found.failure
        assert 0 < found.stored_bytes < plain.original_bytes / 2
        # Dropout is off, so that Q-layers' own zeros make no difference: the forward is the same to the bit.
        assert found.losses[0] == found.losses[1]
        assert 0 < found.gradient_error < 1
        assert measured(way, "peak").gradient_error is None  # once is enough


def test_losses_that_differ_are_not_compared(tiny, monkeypatch):
    calls = iter([1.0, 1.0 + 2 * cell.SAME])
    monkeypatch.setattr(cell, "_gradient", lambda *given: (next(calls), [torch.ones(1)]))
    found = measured("L2")
    assert found.gradient_error is None
    assert found.losses == [1.0, 1.0 + 2 * cell.SAME]
    assert "not comparable" in text_of([PLAIN_CELL, replace(PLAIN_CELL, way="L2", losses=found.losses)])


def test_what_fails_is_said(tiny, monkeypatch):
    monkeypatch.setattr(cell, "relative_error", lambda *given: 1 / 0)
    assert "ZeroDivisionError" in measured("L2").failure


def encoder():
    model = nn.Sequential(nn.Flatten())
    model.fc = nn.Linear(12, 12)
    return model


def test_moco():
    torch.manual_seed(0)
    model = MoCo(encoder(), 8)
    queries, keys = torch.randn(2, 3, 3, 2, 2)
    queue = model.queue.clone()
    loss = model(queries, keys)
    loss.backward()
    query, key = (F.normalize(model.encoder(x), dim=1) for x in (queries, keys))  # key and query encoder are equal yet
    logits = [torch.cat([(q * k).sum()[None], queue @ q]) / TEMPERATURE for q, k in zip(query, key, strict=True)]
    expected = torch.stack([one.logsumexp(0) - one[0] for one in logits]).mean()
    # Sums of 128 and of 9 float32 numbers of up to 5: 1e-6 each.
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    assert all(one.grad is None for one in model.key_encoder.parameters())
    assert all(one.grad is not None for one in model.encoder.parameters())
    torch.testing.assert_close(model.queue, queue, rtol=0, atol=0)
    with torch.no_grad():
        model.encoder.fc[0].bias.add_(1)
    before = model.key_encoder.fc[0].bias.clone()
    for _ in range(2):
        model(queries, keys).backward()
    torch.testing.assert_close(model.queue[:3], key.detach(), rtol=1e-5, atol=1e-6)  # another matmul's order of sums
    torch.testing.assert_close(model.queue[6:], queue[6:], rtol=0, atol=0)
    model(queries, keys)  # the third's keys come to the places 6, 7 and, round, 0
    assert (model.queue != queue).any(dim=1).all()
    assert (model.queue[0] != key[0]).any()
    moved = model.key_encoder.fc[0].bias - before
    # Three times; the bias of up to 0.3 is rounded by 3e-8 each time, of 3e-3.
    torch.testing.assert_close(moved, torch.full_like(moved, 1 - MOMENTUM**3), rtol=1e-4, atol=0)


@pytest.mark.parametrize("name", DENSE)
def test_models_are_the_originals(name):
    pytest.importorskip("torchvision", exc_type=(ImportError, RuntimeError))
    parameters = {  # in millions, trained: torchvision's pages have the first three, and 25.6 with another head
        "fasterrcnn_resnet50_fpn": 41.8,
        "retinanet_resnet50_fpn": 34.1,
        "fcn_resnet50": 33.0,
        "fpn_resnet50": 28.5,
        "moco_v2_resnet50": 28.0,
    }
    model = DENSE[name].build(64, "cpu")
    assert model.training
    own = [one for path, one in model.named_parameters() if not path.startswith("key_encoder")]
    assert all(one.requires_grad for one in own)
    assert sum(one.numel() for one in own) / 1e6 == pytest.approx(parameters[name], abs=0.1)
    kinds = {type(module).__name__ for module in model.modules()}
    assert {kind for kind in kinds if kind.startswith(("Frozen", "Batch", "Group", "Layer"))} == {"BatchNorm2d"}


def test_boxes_lie_within_the_images():
    given = []

    def model(images, targets):
        given.extend(targets)
        return {"one": torch.ones(()), "other": torch.ones(())}

    assert DENSE["fasterrcnn_resnet50_fpn"].batch(model, 3, 64, torch.device("cpu"))().item() == 2
    boxes = torch.cat([one["boxes"] for one in given])
    assert len(boxes) == 12
    assert (boxes[:, 2:] > boxes[:, :2]).all()
    assert boxes.min() >= 0
    assert boxes.max() <= 64


@pytest.mark.parametrize("name", ["fpn_resnet50", "fasterrcnn_resnet50_fpn"])
def test_a_step_draws_the_same(name):
    pytest.importorskip("torchvision", exc_type=(ImportError, RuntimeError))
    torch.manual_seed(0)
    model = DENSE[name].build(48, "cpu")
    case = DENSE[name].case(model, 2, 48, torch.device("cpu"), 0)
    assert case.loss().item() == case.loss().item()


def test_published_rows_are_all_there():
    rows = {name: (one["compressed"], one["official"]) for name, one in PUBLISHED["trained"].items()}
    assert rows == {
        "fasterrcnn_resnet50_fpn": (37.4, 37.4),
        "retinanet_resnet50_fpn": (36.3, 36.5),
        "fcn_resnet50": (72.9, 73.6),
        "fpn_resnet50": (74.7, 74.5),
        "moco_v2_resnet50": (67.3, 67.7),
    }
    assert list(rows) == list(DENSE)


def test_report():
    layers = replace(PLAIN_CELL, way="L2", live_bytes=210, stored_bytes=190, standing_peak_bytes=180, peak_bytes=200)
    text = text_of(
        [PLAIN_CELL, replace(layers, gradient_error=0.25, losses=[1.0, 1.0]), replace(layers, failure="it ended")]
    )
    assert "FCN-R50, 2 at 160 (mIoU, Cityscapes) 73.6 72.9" in text
    assert "L2 0.0 0.0 5.0 0.0 5.00 0.25" in text
    assert "fcn_resnet50, L2, 2, 160, False: failed: it ended." in text
    assert "not measured here" in text


def test_a_run_is_taken_up(monkeypatch, tmp_path, capsys):
    file = tmp_path / "out.json"
    asked = []

    def measure(blank, settings, function):
        assert function is cell.measure_dense
        asked.append((blank.model, blank.way, blank.batch, blank.size))
        return replace(PLAIN_CELL, **{**vars(blank), "losses": [1.0, 1.0], "failure": "x" * (blank.way == "L2")})

    monkeypatch.setattr(cell, "measure", measure)
    monkeypatch.setattr(dense, "needs", lambda name: None)
    command = ["vision", "--part", "dense", "--threads", "1", "--json", str(file)]
    assert main.main([*command, "--quick"]) == 0
    assert asked == [("fcn_resnet50", way, 1, 96) for way in (PLAIN, "L2", "Q-layers L3")]
    asked.clear()
    assert main.main([*command, "--quick"]) == 0
    assert asked == [("fcn_resnet50", "L2", 1, 96)]  # what failed is tried again
    asked.clear()
    assert main.main([*command, "--way", "L1"]) == 0
    assert asked == [(name, way, 2, 160) for name in DENSE for way in (PLAIN, "L1")]
    found = suites.load(file)
    assert len(found.of(DenseCell)) == 13
    assert all(one.losses == [1.0, 1.0] for one in found.of(DenseCell))
    assert all(one.commit for one in found.of(DenseCell))
    capsys.readouterr()
    assert main.main([*command, "--model", "resnet50"]) == 1
    assert "--model must name a model of part dense, got resnet50" in capsys.readouterr().err
    monkeypatch.setattr(dense, "needs", missing)
    assert main.main([*command[:-2], "--quick"]) == 0
    assert "Left out: dense: torchvision cannot be imported." in " ".join(capsys.readouterr().out.split())
