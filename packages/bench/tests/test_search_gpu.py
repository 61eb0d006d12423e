"""``python -m bench search`` on CUDA, as far as a machine without one can tell: limits, trials in a row, a deadline."""

import json
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch

from bench.cli import main, suites
from bench.cli.suites import BENCHES
from bench.errors import BenchError
from bench.results.machine import Machine
from bench.results.record import Record
from bench.runner.child import TooLong
from bench.suites.search import command, processes
from bench.suites.search import trial as trials
from bench.suites.search.entries import Search, Trial, find_search
from bench.suites.search.processes import Trials
from bench.suites.search.trial import Request
from bench.units import GIB, MIB
from bench.ways.general import PLAIN

from .rendering import printed, words

CUDA = torch.device("cuda")
MACHINE = Machine("a GPU", 2, "Linux", {"torch": "2.15.0"}, "0123", False, "python", "today")
REQUEST = Request("resnet50-batch", PLAIN, 160, "cuda", 16 * GIB, threads=1, seed=0)


@pytest.fixture
def gpu(monkeypatch):
    """A GPU's memory: 80 GiB, of which 20 are free beside 2 that torch has reserved here and 1 that others use."""
    found = SimpleNamespace(free=20 * GIB, total=80 * GIB, reserved=2 * GIB, allocated=0, fraction=None, calls=[])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *of: (found.free, found.total))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda *of: found.reserved)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda *of: 15 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda *of: found.allocated)
    for name in ("reset_peak_memory_stats", "synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda *of, name=name: found.calls.append(name))
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: found.calls.append("cuBLAS"), raising=False)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda fraction: setattr(found, "fraction", fraction)
    )
    return found


def test_the_limit_is_the_allocator_s(gpu):
    trials.limit(CUDA, 16 * GIB)
    assert gpu.fraction * gpu.total == 16 * GIB
    assert "reset_peak_memory_stats" in gpu.calls
    trials.limit(CUDA, 22 * GIB)  # what this process has reserved is its own
    assert trials.outside_bytes(CUDA) == 58 * GIB
    assert trials.outside_bytes(torch.device("cpu")) is None


def test_a_limit_beyond_what_is_free_beside_the_context_is_refused(gpu):
    """What others had taken beside the limit ended trials, and counted as training's."""
    gpu.free = 13 * GIB
    with pytest.raises(BenchError, match="left beside a trial's context, 15 GiB, got 16 GiB"):
        trials.limit(CUDA, 16 * GIB)
    assert gpu.fraction is None
    trial = trials.take(REQUEST)
    assert trial.crashed  # it says nothing of what fits
    assert "beside a trial's context" in trial.failure


def test_a_trial_says_what_was_reserved(gpu, monkeypatch):
    def full(request, trial):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(trials, "_taken", full)
    trial = trials.take(REQUEST)
    assert (trial.fits, trial.crashed, trial.reserved_bytes) == (False, False, 15 * GIB)

    def broken(request, trial):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def no_answer(*of):
        raise AssertionError("a device in such a state is not asked")

    monkeypatch.setattr(trials, "_taken", broken)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", no_answer)
    trial = trials.take(REQUEST)
    assert (trial.crashed, trial.reserved_bytes) == (True, None)


def test_engines_without_workspaces_are_out_of_memory():
    """torch tries cuDNN's engines one after another, and forgets why each of them failed."""
    error = RuntimeError("GET was unable to find an engine to execute this computation")
    assert trials.out_of_memory(error)


def served(monkeypatch, *found):
    """What a process answers to requests whose trials are these."""
    waiting, answers = list(found), []
    monkeypatch.setattr(processes, "take", lambda request: waiting.pop(0))
    monkeypatch.setattr(processes, "prepare", lambda *given: None)
    monkeypatch.setattr(
        processes.workers, "serve", lambda answer, lines: answers.extend(answer(json.loads(line)) for line in lines)
    )
    before = torch.get_float32_matmul_precision()
    try:
        processes.serve("cuda", iter([json.dumps(asdict(REQUEST))] * len(found)))
    finally:
        torch.set_float32_matmul_precision(before)
    return answers


def test_trials_follow_one_another_where_they_leave_nothing(monkeypatch, gpu):
    fitting = Trial(160, fits=True)
    full = Trial(320, failure="OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    answers = served(monkeypatch, fitting, full)
    assert [answer["again"] for answer in answers] == [True, True]
    assert [Trial(**answer["trial"]) for answer in answers] == [fitting, full]
    assert gpu.calls.count("empty_cache") == gpu.calls.count("cuBLAS") == 2
    # actcore's operators raise RuntimeErrors, in torch's words or, with torch 2.10, in their own.
    for said in ("actcore: CUDA out of memory. Tried to", "actcore: out of memory: torch could not allocate a tensor"):
        [answer] = served(monkeypatch, Trial(320, failure=f"RuntimeError: {said} ..."))
        assert answer["again"]
    # A library's refusal may have left its handle without a workspace; a broken device is not even asked.
    gpu.calls.clear()
    refused = Trial(320, failure="RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED")
    [answer] = served(monkeypatch, refused)
    assert not answer["again"]
    assert not gpu.calls
    gpu.allocated = 17 * MIB  # the next trial would be charged with it
    [answer] = served(monkeypatch, fitting)
    assert not answer["again"]


class Process:
    """Stands for the worker; a trial at 320 has been its last."""

    def __init__(self):
        self.ends = 0

    def ask(self, request, seconds):
        assert seconds == 25
        return {"trial": asdict(Trial(request["value"], fits=True)), "again": request["value"] < 320}

    def end(self):
        self.ends += 1


def test_a_process_ends_after_a_trial_that_left_something(monkeypatch):
    process = Process()
    with Trials() as made:
        monkeypatch.setattr(made, "_worker", lambda device: process)
        assert made.take(REQUEST, 25).fits
        assert process.ends == 0
        assert made.take(replace(REQUEST, value=320), 25).fits
        assert process.ends == 1


class Machinery:
    """Stands for the processes: plain fits up to 20, all else up to 90; the clock stops after ``count`` trials."""

    def __init__(self, count):
        self.count = count
        self.asked = []
        self.hangs = ()

    def __enter__(self):
        return self

    def __exit__(self, *of):
        pass

    def take(self, request, seconds):
        self.asked.append((request.dimension, request.way, request.value))
        if request.way in self.hangs:
            raise TooLong(f"it did not finish in {seconds:.0f} seconds")
        return Trial(request.value, fits=request.value <= (20 if request.way == PLAIN else 90), items=1)


@pytest.fixture
def machinery(monkeypatch):
    made = Machinery(1000)
    monkeypatch.setattr(command, "Trials", lambda: made)
    monkeypatch.setattr(command.platform, "system", lambda: "Linux")
    monkeypatch.setattr("bench.runner.run.Deadline.over", property(lambda deadline: len(made.asked) >= made.count))
    return made


COMMAND = [
    "search",
    "--search",
    "gcn-layers",
    "--search",
    "gcn-hidden",
    "--way",
    "L1",
    "--deadline",
    "100",
    "--threads",
    "1",
]


def test_what_the_deadline_cuts_off_is_said_and_taken_up(machinery, tmp_path):
    file = tmp_path / "out.json"
    assert main.main([*COMMAND, "--json", str(file)]) == 0
    whole, asked = suites.load(file), machinery.asked[:]
    assert [found.ended for found in whole.of(Search)] == [True] * 4
    ways = [way for _, way, _ in asked]
    names = list(dict.fromkeys((name, way) for name, way, _ in asked))
    assert names[:2] == [("gcn-layers", PLAIN), ("gcn-hidden", PLAIN)]  # each of them before any other way
    file.unlink()
    machinery.asked.clear()
    machinery.count = ways.index("L1") + 2  # two trials of the first one's L1 are made
    assert main.main([*COMMAND, "--json", str(file)]) == 0
    cut = suites.load(file)
    assert machinery.asked == asked[: machinery.count]
    [left] = cut.skipped
    assert left == "the deadline of 100 s came before the end of L1 of gcn-layers, gcn-hidden"
    found = find_search(cut, "gcn-layers", "L1")
    assert (found.ended, found.largest) == (False, None)
    assert found.most is not None
    found_text = printed(cut)
    assert f"L1 ≥ {found.most}" in " ".join(found_text.split())
    machinery.count, machinery.asked = 1000, []
    assert main.main([*COMMAND, "--json", str(file)]) == 0
    assert [one.largest for one in suites.load(file).of(Search)] == [one.largest for one in whole.of(Search)]


def test_a_trial_that_takes_too_long_ends_its_search_alone(machinery, tmp_path):
    machinery.hangs = ("L1",)
    file = tmp_path / "out.json"
    assert main.main([*COMMAND, "--way", "L2", "--json", str(file)]) == 0
    found = suites.load(file)
    # The least of a short time: what is measured takes no time here.
    assert find_search(found, "gcn-layers", "L1").crash in (
        "it did not finish in 60 seconds",
        "it did not finish in 59 seconds",
    )
    assert [way for _, way, _ in machinery.asked].count("L1") == 2  # more memory makes nothing quicker
    assert find_search(found, "gcn-layers", "L2").largest == 90
    assert not found.skipped


def test_what_a_lent_gpu_searches(monkeypatch):
    found = []

    def run(options):
        found.append(options)
        return Record("search", MACHINE, {"device": "cpu"})

    monkeypatch.setattr(main, "BENCHES", {"search": replace(BENCHES["search"], run=run)})
    assert main.main(["search", "--gpu", "--deadline", "50"]) == 0
    [given] = found
    assert given.names == list(command.GPU_NAMES)
    assert given.ways == []
    known = trials.dimensions("cuda")
    ways = {name: command.searched_ways(known[name], None, given.by_default) for name in given.names}
    assert ways["resnet50-batch"] == list(command.GPU_WAYS)
    assert ways["bert-large-batch"] == [way for way in command.GPU_WAYS if way != "Q-layers"]


def test_the_report_says_what_the_limit_leaves_out():
    best = Trial(160, fits=True, items=160, step_seconds=[0.5], outside_bytes=700 * MIB)
    search = Search("resnet50-batch", PLAIN, "ResNet-50: batch", "images", 16 * GIB, 160, ended=True, trials=[best])
    text = words(Record("search", MACHINE, {"device": "cuda"}, [search]))
    assert "In use of the GPU beside torch's allocator: at most 700 MiB." in text
