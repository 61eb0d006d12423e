"""The record that all benches write: its entries, its files, the loop and processes of their own."""

import importlib
import json
import os
from dataclasses import replace

import pytest

from bench.cli.markdown import describe_run
from bench.errors import BenchError, DoesNotApply
from bench.results import record as files
from bench.results.entry import Entry, at, metric, part, series
from bench.results.machine import Machine
from bench.results.record import Kind, Record, paired
from bench.results.tables import header
from bench.runner.child import Child, here, in_child
from bench.runner.run import Deadline, Run

MACHINE = Machine("a processor", 2, "Linux", {"torch": "2.15.0"}, "0123456789ab", False, "python one", "today")


@part("time", "steps of a network in one way")
class Times(Entry):
    """Of a test."""

    model: str = at("the network")
    way: str = at("how it is trained")
    seed: int = at("of its weights", default=0)
    seconds: list[float] = series("s", "of steps")
    peak_bytes: int | None = metric("bytes", "the most")


@part("facts", "a network")
class Facts(Entry):
    """Of a test."""

    model: str = at("the network")
    layers: int = metric("", "how many", default=0)


KIND = Kind("test", (Times, Facts), {"device": "device"}, {"data": "data"}, order=lambda one: one.place)


def begun(file=None, machine=MACHINE, **settings):
    return Run(KIND, machine, {"device": "cpu", **settings}, file)


def timed(entry):
    return replace(entry, seconds=[1.0, 2.0])


def loaded(file):
    return files.load(file, lambda name: {"test": KIND}[name])


def test_what_is_written_is_read(tmp_path):
    file = tmp_path / "out.json"
    entries = [Times("a", "plain", 1, [0.5], peak_bytes=3), Times("a", "L1", failure="no memory"), Facts("a", 4)]
    record = Record("test", MACHINE, {"device": "cpu"}, entries, ["b: too large"], 1.5)
    files.save(record, file)
    assert loaded(file) == record
    first, failed, _ = json.loads(file.read_text())["entries"]
    assert first == {"part": "time", "model": "a", "way": "plain", "seed": 1, "seconds": [0.5], "peak_bytes": 3}
    assert failed == {"part": "time", "model": "a", "way": "L1", "seed": 0, "failure": "no memory"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"entries": [{"part": "time", "model": "a", "way": "b", "speed": 1}]}, "'speed'"),
        ({"entries": [{"part": "speed", "model": "a"}]}, "no part 'speed'; it has time, facts"),
        ({"settings": {"weather": "fine"}}, "no setting weather"),
        ({"format": 1}, "another format"),
        ({"kind": "none"}, "'none'"),
    ],
)
def test_a_wrong_name_is_an_error(tmp_path, changes, words):
    file = tmp_path / "out.json"
    files.save(Record("test", MACHINE, {"device": "cpu"}), file)
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    with pytest.raises(BenchError, match="holds no results") as error:
        loaded(file)
    assert words in str(error.value)


def test_declared_names_have_units_and_words():
    assert ("peak_bytes", "metric", "bytes", "the most") in Times.declared()
    assert Times.coordinates() == ["model", "way", "seed"]


def test_entries_are_found_by_their_coordinates():
    record = Record("test", MACHINE).adding([Times("a", "plain"), Times("a", "L1"), Facts("a"), Times("b", "L1")])
    assert record.find(Times, way="L1", model="b") == Times("b", "L1")
    assert record.find(Facts, model="b") is None
    assert record.values(Times, "model", way="L1") == ["a", "b"]


def test_a_new_entry_takes_the_place_of_an_older_one():
    record = Record("test", MACHINE).adding([Times("a", "plain"), Times("a", "L1")])
    assert record.adding([Times("a", "plain", 0, [1.0])]).entries == [Times("a", "plain", 0, [1.0]), Times("a", "L1")]


def test_pairs_are_those_of_a_seed():
    plain = [Times("a", "plain", seed, [seed]) for seed in (0, 1, 2)]
    others = [Times("a", "L1", seed, [seed + 0.5]) for seed in (2, 1, 7)]
    found = paired(others, plain, lambda one: one.seconds[0])
    assert (found.mean, found.low, found.high) == (0.5, 0.5, 0.5)
    assert paired(others[2:], plain, lambda one: one.seconds[0]) is None


def test_a_run_goes_on_where_it_stopped(tmp_path):
    file, asked = tmp_path / "out.json", []

    def measured(entry):
        asked.append(entry.place)
        if entry.way == "breaks":
            raise ValueError("of no use")
        if entry.way == "unknown":
            raise DoesNotApply("it has no layers")
        return timed(entry)

    wanted = [Times("b", "plain"), Times("a", "plain"), Times("a", "breaks"), Times("a", "unknown")]
    begun(file).measure(wanted, measured)
    found = {one.place[:2]: one for one in loaded(file).of(Times)}
    assert list(found) == sorted(found)
    assert found["a", "plain"].seconds == [1.0, 2.0]
    assert found["a", "plain"].commit == "0123456789"
    assert found["a", "breaks"].failure == "ValueError: of no use"
    assert found["a", "unknown"].does_not_apply == "it has no layers"

    asked.clear()
    begun(file).measure(wanted, measured)  # what failed is measured again, and nothing else
    assert asked == [("a", "breaks", 0)]
    asked.clear()
    begun(file).measure(wanted, measured, lacks=lambda one: len(one.seconds) < 3)
    assert asked == [("b", "plain", 0), ("a", "plain", 0), ("a", "breaks", 0)]


def test_a_run_ends_at_its_deadline():
    run = begun()
    run.measure([Times("a", "L1"), Times("b", "L1")], timed, deadline=Deadline(0.0))
    assert run.record.entries == []
    assert run.record.skipped == ["the deadline of 0 s came before L1 of a, b"]


def test_every_command_that_made_a_file_is_kept_once(tmp_path):
    file = tmp_path / "out.json"
    for command, known in (("python one", 1), ("python two", 2), ("python one", 2)):
        run = begun(file, replace(MACHINE, command=command))
        run.update()
        assert len(run.record.machine.commands) == known
    found = loaded(file)
    assert found.machine.commands == ["python two", "python one"]
    assert describe_run(found).startswith("`python two`, `python one`; a processor, 2 threads")
    assert "command  python two\n         python one; " in header("Numbers", found.machine, 0.0).plain


@pytest.mark.parametrize(
    ("machine", "settings", "words"),
    [
        (replace(MACHINE, threads=1), {}, "another number of threads;"),
        (replace(MACHINE, processor="b"), {"device": "cuda"}, "another device, machine;"),
        (replace(MACHINE, versions={"torch": "2.14.0"}), {}, "another version of torch;"),
    ],
)
def test_other_settings_are_refused(tmp_path, machine, settings, words):
    file = tmp_path / "out.json"
    begun(file).update()
    begun(file, replace(MACHINE, versions={"torch": "2.15.0", "timm": "1.0"})).update()  # which it did not have
    with pytest.raises(BenchError, match=words):
        begun(file, machine, **settings)


def test_a_file_of_another_bench_is_refused(tmp_path):
    file = tmp_path / "out.json"
    files.save(Record("sweep", MACHINE), file)
    before = file.read_text()
    with pytest.raises(BenchError, match="it is of sweep, not of test"):
        begun(file)
    assert file.read_text() == before


def test_settings_that_are_known_late_are_the_same_too(tmp_path):
    file = tmp_path / "out.json"
    run = begun(file)
    run.set(data="digits")
    run.update()
    begun(file).set(data="digits")
    with pytest.raises(BenchError, match=r"another data \(digits, not photographs\);"):
        begun(file).set(data="photographs")


def test_a_file_is_there_whole_or_as_it_was(tmp_path, monkeypatch):
    file = tmp_path / "out.json"
    files.save(Record("test", MACHINE), file)
    before = file.read_text()
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "no space")))
    with pytest.raises(BenchError, match="cannot be written to"):
        files.save(Record("test", MACHINE, seconds=2.0), file)
    assert file.read_text() == before
    assert [one.name for one in tmp_path.iterdir()] == ["out.json"]


HELPED = """
import os, signal
from dataclasses import replace
from bench.errors import DoesNotApply
from bench.results.entry import Entry, at, part, series

@part("time", "steps")
class Steps(Entry):
    model: str = at("the network")
    seconds: list[float] = series("s", "of steps")

def divided(entry, by):
    if by == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if by < 0:
        raise DoesNotApply("it is below zero")
    return replace(entry, seconds=[one / by for one in entry.seconds])
"""
"""A module that a process of its own can import."""


def test_an_entry_is_measured_in_a_process_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "helped.py").write_text(HELPED)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.syspath_prepend(tmp_path)
    helped = importlib.import_module("helped")
    entry = helped.Steps("a", [4.0])
    with Child() as child:
        assert child.measure(helped.divided, entry, by=2).seconds == [2.0]
        assert child.measure(helped.divided, entry, by=-1).does_not_apply == "it is below zero"
        assert "code -9" in child.measure(helped.divided, entry, by=0).failure
        assert child.measure(helped.divided, entry, by=4).seconds == [1.0]  # another process
    assert "TypeError" in in_child(helped.divided, entry, by="two").failure
    assert "TypeError" in here(helped.divided, entry, by="two").failure
