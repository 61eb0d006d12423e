"""The part ``compression`` of ``python -m bench vision``: cells, what is taken up, what fails, and what is judged."""

from dataclasses import asdict, replace

import pytest
import torch
from torch import nn

import integrations
from bench.cli import main, suites
from bench.cli.markdown import render_record
from bench.errors import MissingLibrary
from bench.models import image_models as models
from bench.models.image_models import ImageModel
from bench.models.subject import Case
from bench.results.record import Record, save
from bench.runner.child import here
from bench.runner.memory import standing_peak_bytes
from bench.suites.vision import cell as cells
from bench.suites.vision import command as compressing
from bench.suites.vision.cell import Settings, peak_operator
from bench.suites.vision.compression_tables import KEPT, PUBLISHED
from bench.suites.vision.entries import Cell
from bench.ways.conversions import PLAIN, WAYS

from .rendering import MACHINE, words


def missing(name):
    raise MissingLibrary("torchvision cannot be imported")


SETTINGS = Settings("cpu", 1, 0, 1 << 30)


class Counted:
    """Counts what a test adds up: the real counters need a process that was started for them."""

    now = 0
    most = 0

    def live(self):
        return self.now

    def start_peak(self):
        self.most = self.now
        return self.now

    def peak(self):
        return self.most

    def take(self, count):
        self.now += count
        self.most = max(self.most, self.now)


@pytest.fixture
def small(monkeypatch):
    """In the place of ResNet-50 two convolutions, and counters that count nothing."""

    def build(classes, size):
        layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(8 * (size - 4) ** 2, classes))

    model = ImageModel("a small one", "torch", build, {"cpu": 4, "cuda": 4})
    monkeypatch.setattr(cells, "MODELS", {"resnet50": model})
    monkeypatch.setattr(cells, "CLASSES", 10)
    monkeypatch.setattr(cells, "counters", lambda device: Counted())
    monkeypatch.setattr(cells, "limit_allocation", lambda nbytes: None)  # of a process that ends thereafter


def counted_here(cell, counted):
    return here(cells.measure_here, cell, settings=asdict(SETTINGS), counted=counted)


def measured(way, counted="live", **changes):
    return counted_here(replace(Cell("resnet50", way, 4, 16), **changes), counted)


def test_what_report_and_graph_say_is_kept(small):
    plain = measured(PLAIN)
    # Two convolutions' outputs, one norm's: 4 x 8 of 14 x 14 twice, of 12 x 12 once; the norm's statistics of 8
    # channels twice, what the cross-entropy keeps of 4 x 10, and its weight of 4 bytes. Images and parameters not.
    outputs = 4 * 8 * (14 * 14 * 2 + 12 * 12)
    assert plain.original_bytes == pytest.approx(4 * (outputs + 2 * 8 + 4 * 10), abs=64)
    assert plain.stored_bytes is None
    for way in ("L1", "L1.2", "L2.2", "Q-layers L2", "L1 + checkpoint"):
        found = measured(way)
        assert not found.failure
        assert 0 < found.stored_bytes < plain.original_bytes / 2, way
        assert (found.original_bytes is None) is way.startswith("Q-layers")
    assert measured("L1.2").stored_bytes < measured("L1").stored_bytes < measured("L1.1").stored_bytes


def test_levels_that_adapt_have_bits_of_few_samples(small):
    # The warm-up has two of four samples, and the plan that it ends with is the whole batch's.
    assert measured("L2.2").stored_bytes < measured("L2").stored_bytes


def test_channels_last(small):
    assert cells.build(Cell("resnet50", PLAIN, 4, 16, channels_last=True), SETTINGS)[3].weight.is_contiguous(
        memory_format=torch.channels_last
    )
    found = measured("L1", channels_last=True)
    assert found.stored_bytes == pytest.approx(measured("L1").stored_bytes, rel=0.01)


def test_what_does_not_apply_is_no_failure(small, monkeypatch):
    def refused(*args, **options):
        raise ValueError("refused")

    monkeypatch.setattr(integrations, "compress_model", refused)
    found = measured("L1")
    assert found.does_not_apply == "refused"
    assert not found.failure


def test_what_fails_is_said(small, monkeypatch):
    monkeypatch.setattr(cells, "make_batch", lambda *given: 1 / 0)
    assert "ZeroDivisionError" in measured("L1").failure
    monkeypatch.setattr(cells, "counters", lambda device: "needs Linux")
    assert measured("L1").failure == "needs Linux"


class Takes(torch.autograd.Function):
    """Takes bytes for as long as an operator runs, in forward and backward."""

    @staticmethod
    def forward(ctx, x, count, forward, backward):
        ctx.count, ctx.backward = count, backward
        count.take(forward)
        count.take(-forward)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        ctx.count.take(ctx.backward)
        ctx.count.take(-ctx.backward)
        return gradient.cos(), None, None, None


@pytest.mark.parametrize(("forward", "backward", "where"), [(200, 100, "forward: aten::sin"), (1, 300, "backward: ")])
def test_the_operator_of_the_peak(forward, backward, where):
    count = Counted()
    count.take(1000)
    x = torch.ones(2, 3, requires_grad=True)
    case = Case(nn.Identity(), lambda: Takes.apply(x, count, forward, backward).sum(), "")
    assert standing_peak_bytes(case.loss, count) == max(forward, backward)
    found = peak_operator(case.loss, count)
    assert found.startswith(where)
    assert found.endswith("2x3")
    assert peak_operator(lambda: x.sum(), count) == ""  # nothing rises


@pytest.mark.parametrize("name", models.MODELS)
def test_models_are_the_originals(name):
    pytest.importorskip("torchvision", exc_type=(ImportError, RuntimeError))
    pytest.importorskip("timm", exc_type=(ImportError, RuntimeError))
    parameters = {  # in millions, as their papers and libraries have it
        "resnet50": 25.6,
        "resnet152": 60.2,
        "wide_resnet101_2": 126.9,
        "densenet201": 20.0,
        "swin_tiny": 28.3,
        "swin_small": 49.6,
        "resnet18": 11.7,
    }
    with torch.device("meta"):
        model = models.MODELS[name].build(1000, 224)
    assert model.training
    assert sum(parameter.numel() for parameter in model.parameters()) / 1e6 == pytest.approx(parameters[name], abs=0.06)


@pytest.mark.parametrize("way", [PLAIN, "L1", "Q-layers L3", "L1.2 + checkpoint"])
def test_a_real_model_in_every_way(way, monkeypatch):
    pytest.importorskip("torchvision", exc_type=(ImportError, RuntimeError))
    monkeypatch.setattr(cells, "counters", lambda device: Counted())
    monkeypatch.setattr(cells, "limit_allocation", lambda nbytes: None)
    monkeypatch.setattr(cells, "WARM_UP", 1)  # without the steps in which levels adapt: they take half a minute
    found = counted_here(Cell("resnet18", way, 2, 32), "both")
    assert not found.failure
    assert not found.does_not_apply
    assert found.peak_in == ""  # the counters count nothing
    # Most is inputs of norms and convolutions, kept in 8 bits of 32 at most.
    assert (found.stored_bytes is None) is (way == PLAIN)
    assert way == PLAIN or 0 < found.stored_bytes < kept_of_resnet18() / 2


def kept_of_resnet18():
    """Bytes of what is before each norm and behind each activation of two images of 32 x 32."""
    shapes = [(64, 16)] + [(64, 8)] * 4 + [(128, 4)] * 5 + [(256, 2)] * 5 + [(512, 1)] * 5
    return 4 * 2 * 2 * sum(channels * size**2 for channels, size in shapes)


PLAIN_CELL = Cell("resnet50", PLAIN, 16, 224, False, 1010, 1000, None, 800, 900, "forward: aten::add, 2x3")


def cell(way, live, stored, peak=200, standing=180, **changes):
    known = {"live_bytes": live, "stored_bytes": stored, "peak_bytes": peak, "standing_peak_bytes": standing}
    return replace(PLAIN_CELL, way=way, **{**known, **changes})


def text_of(found):
    return words(Record("vision", MACHINE, {"device": "cpu", "seed": 0}, found))


def test_what_is_compared():
    l1 = cell("L1", 210, 190)
    assert l1.allocated_bytes(PLAIN_CELL) == 200  # less the 10 that live beside the untouched model's
    assert l1.ratio(PLAIN_CELL) == 5.0
    assert cell("L1", 150, 190).ratio(PLAIN_CELL) == pytest.approx(1000 / 190)
    assert cell("L1", None, 200).ratio(PLAIN_CELL) == 5.0
    assert PLAIN_CELL.ratio(PLAIN_CELL) is None
    assert l1.peak_ratios(PLAIN_CELL) == (4.0, 5.0)
    assert cell("L1", 1, 1, peak=None).peak_ratios(PLAIN_CELL) is None


def test_what_is_judged():
    enough = text_of([PLAIN_CELL, *(cell(way, 10 + int(1000 / least), 1, 180, 200) for way, least in KEPT.items())])
    assert enough.count("✓") == 4 + 4  # what is kept, two peaks of two ways
    assert "✗" not in enough
    # A peak that is small enough in one way of counting alone is not, and says which.
    mixed = text_of([PLAIN_CELL, cell("L2.2", 200, 190, 200, 180)])
    assert "4.00 ✗ 5.00 ✓" in mixed
    assert "5.3 ✗ 11.3, 8.0" in mixed  # published figures beside it
    others = [PLAIN_CELL, cell("L2.2", 200, 190)]
    for changes in ({"model": "resnet18"}, {"size": 64}):
        assert "✗" not in text_of([replace(one, **changes) for one in others])


def test_what_failed_is_in_the_report():
    text = text_of([PLAIN_CELL, cell("L1", None, None, failure="it ended"), cell("L2", 1, 1, does_not_apply="why not")])
    assert "resnet50, L1, 16, 224, False: failed: it ended." in text
    assert "L2, 16, 224, False: does not apply: why not." in text
    assert "L1 failed" in text_of([cell("L1", None, None, failure="it ended")])  # without a plain one


def _ratios(one):
    return [None if one[what] is None else one[what][0] / one[what][1] for what in ("kept", "peak")]


def test_published_figures():
    ratios = {(one["way"], one["batch"]): _ratios(one) for one in PUBLISHED["compressed"]}
    assert ratios["L2", 128] == pytest.approx((6.7, 3.9), abs=0.05)  # as the source has the first
    assert ratios["L2.2", 128] == pytest.approx((11.3, 4.4), abs=0.05)
    assert ratios["L2.2", 64] == pytest.approx((8.0, 1.6), abs=0.05)
    assert all(one["source"] and one["way"] in WAYS for one in PUBLISHED["compressed"])


def test_a_run_is_taken_up_and_a_crash_is_recorded(monkeypatch, tmp_path, capsys):
    file = tmp_path / "out.json"
    asked = []

    def measure(blank, settings, function):
        assert function is cells.measure_here
        asked.append((blank.way, blank.batch, settings.seed))
        return replace(PLAIN_CELL, **{**vars(blank), "failure": "it ended" if blank.way == "L2" else ""})

    monkeypatch.setattr(cells, "measure", measure)
    monkeypatch.setattr(compressing, "needs", lambda name: None)
    command = ["vision", "--part", "compression", "--model", "resnet50", "--threads", "1", "--json", str(file)]
    command += ["--way", "L1", "--way", "L2"]
    assert main.main(command) == 0
    assert asked == [(PLAIN, 16, 0), ("L1", 16, 0), ("L2", 16, 0)]
    assert "L2, 16, 224, False: failed: it ended" in " ".join(capsys.readouterr().out.split())
    asked.clear()
    assert main.main([*command, "--way", "Q-layers L3"]) == 0
    assert asked == [("L2", 16, 0), ("Q-layers L3", 16, 0)]  # what failed is tried again
    asked.clear()
    assert main.main([*command, "--batch", "4"]) == 0
    assert [batch for _, batch, _ in asked] == [4, 4, 4]
    found = suites.load(file)
    assert [(one.batch, one.way) for one in found.of(Cell)] == [
        *((4, way) for way in (PLAIN, "L1", "L2")),
        *((16, way) for way in (PLAIN, "L1", "L2", "Q-layers L3")),
    ]
    assert all(one.commit for one in found.of(Cell))
    capsys.readouterr()
    assert render_record("out.json", found).count("**ResNet-50, 4 at 224**") == 2
    assert main.main([*command, "--seed", "1"]) == 1
    assert "holds results of another seed" in capsys.readouterr().err
    # Another part goes into the same file, and takes nothing from it.
    command = [
        "vision",
        "--part",
        "time",
        "--dataset",
        "digits",
        "--rounds",
        "1",
        "--threads",
        "1",
        "--json",
        str(file),
    ]
    assert main.main(command) == 0
    assert len(suites.load(file).of(Cell)) == 7
    # What is on other images does not.
    other = suites.load(file)
    save(replace(other, settings={**other.settings, "data": "CIFAR-10 subset (3,805 images)"}), file)
    assert main.main(command) == 1
    assert "holds results of another set of images (CIFAR-10 subset" in capsys.readouterr().err


def test_what_needs_a_library_is_left_out(monkeypatch, capsys):
    monkeypatch.setattr(compressing, "needs", missing)
    assert main.main(["vision", "--part", "compression", "--quick", "--threads", "1"]) == 0
    assert "Left out: compression of resnet18: torchvision cannot be imported." in " ".join(
        capsys.readouterr().out.split()
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main.main(["vision", "--part", "compression", "--device", "cuda"]) == 1
    assert "device cuda is not available" in capsys.readouterr().err
