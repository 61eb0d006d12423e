"""``python -m bench curves``: its text, its tasks, how ways are paired, its records and its tables."""

import importlib.util
from dataclasses import replace

import pytest
import torch

from bench.cli import main, suites
from bench.errors import BenchError
from bench.models.data import library_source
from bench.models.data.graphs import digits
from bench.results.record import Record
from bench.runner.child import Child
from bench.runner.memory import Memory
from bench.suites.curves import cell, command, tasks
from bench.suites.curves.cell import trained
from bench.suites.curves.entries import LEAST, WAYS, Trained
from bench.suites.curves.tasks import QUICK, RECIPES, TASKS
from bench.ways.general import PLAIN

from .rendering import MACHINE, panels, words

CPU = torch.device("cpu")
LIBRARIES = {"llama": "transformers", "vit": "timm"}


@pytest.fixture
def task(request, monkeypatch):
    """A task of the quick size, with data that are built in."""
    name = request.param
    if name in LIBRARIES and importlib.util.find_spec(LIBRARIES[name]) is None:
        pytest.skip(f"{LIBRARIES[name]} is not installed")
    monkeypatch.delenv("ACTCORE_DATA", raising=False)
    monkeypatch.setattr(tasks.graphs, "load", lambda *_, **__: digits())  # the other one would be downloaded
    return TASKS[name](replace(RECIPES[QUICK][name], steps=3), None, CPU)


@pytest.fixture
def library(tmp_path):
    """Files of ten bytes, each of its own number."""
    for number in range(40):
        for folder in ("a", "b", "site-packages/x", "a/tests"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / f"{number}.py").write_bytes(bytes([number if "/" not in folder else 99] * 10))
    return tmp_path


def test_a_text_is_of_whole_files_in_a_fixed_order(library):
    text = library_source.load(10_000, library)
    files = [part.unfold(0, 10, 10) for part in (text.train, text.held_out)]
    assert all((some == some[:, :1]).all() for some in files)
    assert sorted(torch.cat(files)[:, 0].tolist()) == sorted([*range(40)] * 2)  # and none of tests or packages
    assert 0 < len(files[1]) < len(files[0])
    few = library_source.load(95, library)
    assert torch.equal(few.train, text.train[:95])
    assert torch.equal(few.held_out, text.held_out[:9])
    assert "95 bytes for training, 9 held out, 256 different ones" in str(few)


def test_a_text_needs_files(tmp_path):
    with pytest.raises(BenchError, match=r"has too few \.py files to train on, 0"):
        library_source.load(100, tmp_path)


def test_every_machine_has_the_text():
    text = library_source.load(100_000)
    assert (len(text.train), len(text.held_out)) == (100_000, 10_000)
    assert b"import" in bytes(text.held_out.tolist())


@pytest.mark.parametrize("task", TASKS, indirect=True)
def test_ways_of_a_seed_share_weights_batches_and_dropout(task):
    """Also a plan, which runs its first step and those that it measures several times."""
    found = {}
    for way in WAYS:
        drawn = []

        def draw(model, generator, drawn=drawn):
            subject = task.draw(model, generator)
            given = subject.inputs
            drawn.append([one.clone() for one in (given.values() if isinstance(given, dict) else given)])
            return subject

        entry = trained(Trained("", way, 7), replace(task, draw=draw))
        found[way] = entry, drawn, torch.get_rng_state()
    plain, batches, generator = found[PLAIN]
    other = trained(Trained("", PLAIN, 8), task)
    assert other.losses[0] != plain.losses[0]
    for way, (entry, drawn, state) in found.items():
        # A forward is exact, but for the order of the sum over a loss in chunks: of n losses it is off by less than
        # n * 2**-24 of them, and the largest here has 140.
        assert entry.losses[0] == pytest.approx(plain.losses[0], rel=1e-5), way
        assert len(entry.losses) == 3
        assert all(
            torch.equal(one, same)
            for some, known in zip(drawn, batches, strict=True)
            for one, same in zip(some, known, strict=True)
        )
        assert torch.equal(state, generator), way
    assert found["L1"][0].losses != plain.losses
    assert plain.error == 0 < found["L1"][0].error < 0.5


@pytest.mark.parametrize("task", ["resnet"], indirect=True)
def test_a_loss_falls(task):
    entry = trained(Trained("", "lean", 0), replace(task, recipe=replace(task.recipe, steps=60)))
    assert len(entry.losses) == 20
    assert entry.end < entry.losses[0] / 2
    assert entry.held_out < entry.losses[0]
    assert entry.accuracy > 50  # one in ten is right by chance


class Counted:
    """Counts peaks of a GiB."""

    def start_peak(self):
        return 0

    def peak(self):
        return 2**30


@pytest.mark.usefixtures("no_child")
def test_the_command_trains_and_is_taken_up(monkeypatch, tmp_path, capsys):
    """In two ways: the test above trains in each, and ``nox -s bench_quick`` runs the command in all of them."""
    ways = [PLAIN, LEAST]
    monkeypatch.setattr(command, "WAYS", ways)
    monkeypatch.setattr(cell, "counters", lambda device: Counted())
    monkeypatch.delenv("ACTCORE_DATA", raising=False)
    file = tmp_path / "curves.json"
    asked = ["curves", "--quick", "--task", "resnet", "--threads", "1", "--json", str(file)]
    assert main.main(asked) == 0
    written = capsys.readouterr()
    assert "resnet: ResNet-20, digits (1,437 images" in " ".join(written.out.split())
    told = [line for line in written.err.splitlines() if line.endswith(("to do", "done"))]
    assert told[:3] == ["tasks: 1 to do", "resnet, loaded: done", f"peaks: {len(ways)} to do"]
    assert f"trainings: {len(ways)} to do" in told
    results = suites.load(file)
    assert [(one.way, one.seed, one.reason) for one in results.of(Trained)] == [(way, 0, "") for way in ways]
    assert all(one.losses and one.held_out for one in results.of(Trained))
    assert [(one.level, bool(one.peak_bytes)) for one in results.of(Memory)] == [(way, True) for way in ways]
    monkeypatch.setattr(Child, "measure", lambda *_, **__: pytest.fail("it is trained again"))
    assert main.main(asked) == 0
    assert main.main([one for one in asked if one != "--quick"]) == 1
    assert "holds results of another size" in capsys.readouterr().err


def entry(way, seed, loss, accuracy, error=0.0):
    return Trained("resnet", way, seed, [2.0, loss], loss, accuracy, error)


@pytest.fixture
def record():
    """L1's loss is higher in all seeds by about as much, and lean's in no direction."""
    peaks = {PLAIN: 4, "L1": 1, "lean": 1}
    entries = [
        *(Memory("resnet", way, peak_bytes=peak * 2**20) for way, peak in peaks.items()),
        *(entry(PLAIN, seed, 1 + seed / 10, 50) for seed in range(3)),
        *(entry("L1", seed, 1.1 + seed / 10 + seed / 1000, 50 - seed, error=0.1 * seed) for seed in range(3)),
        *(entry("lean", seed, 1 + seed / 10 + (seed - 1) / 10, 51 + seed / 100) for seed in range(3)),
    ]
    return Record("curves", MACHINE, {"size": "cpu", "device": "cpu", "tasks": {"resnet": "ResNet-20"}}, entries)


def test_a_table_says_what_is_worse_than_plain(record):
    text = words(record)
    assert "plain 1.1000 ± 0.1000 1.1000 ± 0.1000 50.00 ± 0.00 4.0" in text
    # t of 2 degrees of freedom is 4.303, and the differences scatter by 0.001: 4.303 * 0.001 / 3 ** 0.5 = 0.0025.
    assert "L1 +0.1010 [+0.0985, +0.1035] ✗ +0.1010 [+0.0985, +0.1035] ✗ -1.00 [-3.48, +1.48] 1.0 (25 %) 0.200" in text
    assert "lean +0.0000 [-0.2484, +0.2484]" in text
    assert "in 2 of 6 comparisons; 1 are on the better side" in text
    assert "Not shown:" in text


def test_a_single_seed_has_no_interval(record):
    text = words(replace(record, entries=[one for one in record.entries if getattr(one, "seed", 0) == 0]))
    assert "L1 +0.1000 +0.1000 +0.00 1.0 (25 %) 0.000" in text
    assert "in 0 of 0 comparisons" in text


def test_a_chart_has_a_line_for_each_way(record):
    [panel] = panels(record)
    assert [series.label for series in panel.series] == [PLAIN, "L1", "lean"]
    assert [series.x for series in panel.series] == [[50, 100]] * 3
    assert panel.series[0].y == pytest.approx([2.0, 1.1])
    failed = replace(record, entries=[Trained("resnet", LEAST, 0, failure="no memory")])
    assert panels(failed) == []
    assert "resnet, plan, least, error 0.1, 0: failed: no memory" in words(failed)
