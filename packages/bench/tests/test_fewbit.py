"""``python -m bench fewbit``: short runs on tiny networks, and what is computed from its values."""

import importlib.util
import itertools
import sys
from dataclasses import asdict, replace

import pytest
import torch
from torch import nn

from bench.cli import main, suites
from bench.models.data import mrpc as sentences
from bench.results.record import Record
from bench.suites.fewbit import cell, training
from bench.suites.fewbit import command as measure
from bench.suites.fewbit.entries import BertRun, Peak, Times, held_out
from bench.suites.fewbit.report import learned
from bench.suites.vision.cell import graph_bytes
from bench.ways import roberta
from bench.ways.roberta import WAYS, Exchange, Shape
from integrations.fewbit import RandomizedLinear

from .rendering import MACHINE, printed

TINY = Shape(layers=1, hidden=32, heads=2, vocabulary=50, length=16)

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)


def text_of(results):
    return printed(results)


# memory


@needs_transformers
def test_what_each_way_exchanges():
    for name, way in WAYS.items():
        model = roberta.Case(TINY, way, 2, torch.device("cpu")).model
        sketched = [path for path, module in model.named_modules() if isinstance(module, RandomizedLinear)]
        assert len(sketched) == (0 if way.ratio is None else 6), name
        assert all(path.startswith("roberta.encoder.layer.") for path in sketched)
        plain = [module for module in model.modules() if type(module) is nn.Linear]
        assert len(plain) == (8 if way.ratio is None else 2)  # two of the head


@needs_transformers
def test_the_graph_of_each_way_keeps_what_it_should():
    batch = 8
    kept = {}
    for name, way in WAYS.items():
        torch.manual_seed(0)
        case = roberta.Case(TINY, way, batch, torch.device("cpu"))
        kept[name] = graph_bytes(case.model, case.loss)
    vanilla, gelu, linear, both = kept.values()
    rows, hidden = batch * TINY.length, TINY.hidden
    # GELU keeps its input: 3 bits in place of 32, and at most a byte for each 32 elements that guards them.
    inner = rows * 4 * hidden
    assert inner * (4 - 3 / 8 - 1 / 32) <= vanilla - gelu <= inner * (4 - 3 / 8)
    # Inputs of attention's output, of the inner and of the outer layer go, each for its sketch. Query, key and value
    # share an input, in place of which each has a sketch.
    inputs = 4 * rows * (hidden + hidden + hidden + 4 * hidden)
    sketch_rows = 4 * round(roberta.RATIO * rows) * (3 * hidden + hidden + hidden + 4 * hidden)
    seeds = 6 * 64
    assert inputs - sketch_rows - seeds <= vanilla - linear <= inputs - sketch_rows + 4 * 9 * hidden
    # The inner layer's activation is the outer one's input: each of both goes on its own.
    assert vanilla - both == pytest.approx((vanilla - gelu) + (vanilla - linear), abs=seeds)


def test_the_batch_is_padded():
    torch.manual_seed(0)
    tokens, mask = roberta.padded(64, TINY, 1)
    assert tokens.shape == mask.shape == (64, 16)
    assert torch.equal(tokens != 1, mask.bool())
    lengths = mask.sum(1)
    assert lengths.min() >= 4
    assert lengths.max() <= 16
    assert len(lengths.unique()) > 1


class Counted:
    """Counters of a step that are known: 1,000 bytes before it, 1,500 after its forward, 5,000 at its peak."""

    def __init__(self):
        self._live = itertools.cycle((1000, 1500))

    def live(self):
        return next(self._live)

    def start_peak(self):
        return 1000

    def peak(self):
        return 5000


@needs_transformers
def test_memory_is_what_the_counters_say(monkeypatch):
    monkeypatch.setattr(cell, "counters", lambda device: Counted())
    options = {"shape": asdict(TINY), "batch": 2, "steps": 2, "device": "cpu"}
    gradients = sum(one.nbytes for one in roberta.Case(TINY, Exchange(), 1, torch.device("cpu")).model.parameters())
    for blank in cell.peaks(TINY, 2):
        peak = cell.measure_peak(blank, way=asdict(WAYS[blank.way]), **options)
        sizes = {"kept_bytes": [500, 500], "peak_bytes": [4000, 4000], "raw_bytes": [5000, 5000]}
        assert peak == replace(blank, **sizes, gradient_bytes=gradients)
        assert peak.activation_bytes == 4000 - gradients
    monkeypatch.setattr(cell, "counters", lambda device: "no Linux")
    found = cell.measure_peak(blank, way=asdict(WAYS["both"]), **options)
    assert found == replace(blank, not_measured="no Linux")


# the command line


@needs_transformers
def test_a_run_prints_writes_and_draws(corpus, recipe, monkeypatch, tmp_path, capsys):
    file, picture = tmp_path / "out.json", tmp_path / "out.png"
    for name, value in (("QUICK_ELEMENTS", 4096), ("QUICK_ROWS", 64), ("FEATURES", (16, 32))):
        monkeypatch.setattr(cell, name, value)
    command = ["fewbit", "--part", "training", "--part", "time", "--quick", "--threads", "1"]
    command += ["--data-root", str(corpus), "--json", str(file), "--chart", str(picture)]
    assert main.main(command) == 0
    printed = capsys.readouterr().out
    assert "Few-bit activations" in printed
    assert "✓" not in printed  # quick runs are not judged
    assert picture.read_bytes().startswith(b"\x89PNG")
    found = suites.load(file)
    assert [(run.kind, run.seed, len(run.losses)) for run in found.of(BertRun)] == [
        (kind, 0, 2) for kind in (*training.KINDS, training.CONTROL)
    ]
    assert [times.name for times in found.of(Times)] == [*cell.FUNCTIONS, *cell.SKETCHES]
    assert {len(times.seconds) for times in found.of(Times)} == {cell.QUICK_ROUNDS}
    assert all(one.commit for one in found.entries)
    assert found.settings["recipe"]["steps"] == 4
    assert main.main(["show", str(file)]) == 0
    assert capsys.readouterr().out == printed


@needs_transformers
def test_an_interrupted_run_goes_on(corpus, recipe, monkeypatch, tmp_path, capsys):
    file = tmp_path / "out.json"
    command = ["fewbit", "--part", "training", "--quick", "--seeds", "2", "--threads", "1"]
    command += ["--data-root", str(corpus), "--json", str(file)]
    train = training.train

    def interrupted(kind, seed, *others):
        if (kind, seed) == ("exact", 1):
            raise KeyboardInterrupt
        return train(kind, seed, *others)

    monkeypatch.setattr(training, "train", interrupted)
    assert main.main(command) == 130
    assert [run.seed for run in suites.load(file).of(BertRun)] == [0, 0, 0]
    trained = []
    monkeypatch.setattr(training, "train", lambda *given: trained.append(given[:2]) or train(*given))
    assert main.main(command) == 0
    assert trained == [*((kind, 1) for kind in training.KINDS), (training.CONTROL, 0)]
    found = suites.load(file)
    assert [run.seed for run in found.of(BertRun)] == [0, 0, 0, 1, 1, 1, 0]
    # Fewer seeds take nothing from the file, and nothing is trained again.
    trained.clear()
    assert main.main([*command, "--seeds", "1"]) == 0
    assert not trained
    assert suites.load(file).entries == found.entries
    # What was trained otherwise would make no pairs.
    monkeypatch.setattr(measure, "Recipe", lambda **_: replace(recipe, batch=4))
    assert main.main(command) == 1
    assert "holds results of another recipe of training" in capsys.readouterr().err


def test_what_a_part_lacks(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(measure, "PARTS", ("memory", "training"))
    monkeypatch.delenv("ACTCORE_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert main.main(["fewbit", "--quick", "--threads", "1"]) == 0
    assert "Left out: memory: transformers cannot be imported" in " ".join(capsys.readouterr().out.split())
    assert main.main(["fewbit", "--part", "memory", "--quick", "--threads", "1"]) == 1
    assert "transformers cannot be imported" in capsys.readouterr().err
    assert main.main(["fewbit", "--quick", "--chart", str(tmp_path / "a.png"), "--threads", "1"]) == 1
    assert "there is nothing to draw" in capsys.readouterr().err
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main.main(["fewbit", "--device", "cuda"]) == 1
    assert "device cuda is not available" in capsys.readouterr().err


@needs_transformers
def test_a_corpus_that_was_asked_for_must_be_there(tmp_path, capsys):
    assert main.main(["fewbit", "--part", "training", "--quick", "--data-root", str(tmp_path)]) == 1
    assert f"in {tmp_path / sentences.FOLDER}" in capsys.readouterr().err


def test_what_is_judged():
    mib = 2**20
    peaks = [
        Peak(
            way,
            f"RoBERTa, {Shape()}",
            16,
            kept_bytes=[900 * mib],
            peak_bytes=[(1000 + peak) * mib],
            raw_bytes=[2000 * mib],
            gradient_bytes=100 * mib,
        )
        for way, peak in zip(WAYS, (100, -40, -86, -230), strict=True)  # 1000 without the gradients, and less of these
    ]
    runs = [
        BertRun(kind, seed, [5.0, loss], loss + 0.1 * seed)
        for seed in range(5)
        for kind, loss in (("exact", 4.0), ("3 bits", 4.02))
    ]
    times = [
        Times("gelu", "activation", cell.ELEMENTS, [0.9, 0.8, 9.0], [1.0, 1.0, 1.0]),
        Times("silu", "activation", cell.ELEMENTS, [2.0], [1.0]),
        Times("dct", "linear", 768, [1.5], [1.0]),
    ]
    settings = {"device": "cpu", "data": "MRPC", "recipe": {"steps": 2}, "entropy": 5.3}
    results = Record("fewbit", MACHINE, settings, [*peaks, *runs, *times])
    assert [round(1 - peak.activation_bytes / peaks[0].activation_bytes, 3) for peak in peaks] == [0, 0.14, 0.186, 0.33]
    assert learned(results) == pytest.approx(1.1)
    assert held_out(results).ratio == pytest.approx(4.22 / 4.2)
    assert times[0].ratio == 0.9
    text = text_of(results)
    for words in ("14.0 ✓", "18.6 ✓", "33.0 ✓", "1.0048 ✓", "4.200 ± 0.158 ✓", "0.90 ✓"):
        assert words in text, words
    assert text.count("✓") == 6
    worse = [replace(run, held_out=4.3) if run.kind == "3 bits" else run for run in runs]
    slower = replace(times[0], seconds=[1.1])
    missed = replace(
        results,
        settings={**settings, "entropy": 5.1},
        entries=[peaks[0], replace(peaks[1], peak_bytes=[970 * mib]), *worse, slower],
    )
    text = text_of(missed)
    for words in ("13.0 ✗", "1.0238 ✗", "4.200 ± 0.158 ✗", "1.10 ✗"):
        assert words in text, words
    assert "✓" not in text
    # Another network, fewer seeds, a smaller tensor: nothing is judged.
    others = [replace(peak, network="RoBERTa, 2 layers") for peak in peaks]
    small = replace(results, entries=[*others, *runs[:2], replace(times[0], elements=4096)])
    assert "✓" not in text_of(small)


def test_peaks_that_are_not_measured_say_why():
    peak = Peak("vanilla", "RoBERTa", 1, not_measured="no Linux")
    assert "vanilla, RoBERTa, 1: no Linux." in text_of(Record("fewbit", MACHINE, {"device": "cpu"}, [peak]))
