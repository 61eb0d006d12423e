"""Runs of ``bench kernels``, and the times that ``bench gnn`` records."""

import dataclasses
import itertools
import statistics
from argparse import Namespace

import pytest
import torch

from bench.cli import main, suites
from bench.errors import BenchError
from bench.runner import clock
from bench.suites.gnn.kernel_time import KernelTime, time_kernels
from bench.suites.kernels import command as measure
from bench.suites.kernels import contenders
from bench.suites.kernels.cases import GROUP, cases
from bench.suites.kernels.contenders import Pass, RoundTrip
from bench.suites.kernels.entries import Measurement

from .rendering import words

CPU = torch.device("cpu")
KIB = 2**10


# ---- what bench gnn records ----


def test_ratios_against_values_computed_by_hand():
    time = KernelTime(4, 256, 2, compress=[2.0, 9.0, 4.0], copy=[1.0, 3.0, 1.0], decompress=[3.0], clone=[2.0])
    assert time.compress_ratio == 3.0  # of 2, 3 and 4
    assert time.best_compress_ratio == 2.0
    assert time.decompress_ratio == time.best_decompress_ratio == 1.5


def test_every_width_is_timed_and_threads_are_restored():
    before = torch.get_num_threads()
    times = time_kernels(CPU, 2, bits=(4, 1), mebibytes=1, rounds=3)
    assert torch.get_num_threads() == before
    assert [(time.bits, time.mebibytes, time.threads) for time in times] == [(4, 1, 2), (1, 1, 2)]
    for time in times:
        for seconds in (time.compress, time.copy, time.decompress, time.clone):
            assert len(seconds) == 3
            assert min(seconds) > 0


# ---- taking turns ----


def test_contenders_take_turns_and_the_first_round_does_not_count(monkeypatch):
    order = []
    ticks = itertools.count()
    monkeypatch.setattr(clock.time, "perf_counter", lambda: float(next(ticks)))
    times = clock.in_turn([lambda: order.append("a"), lambda: order.append("b")], rounds=2, device=CPU)
    assert order == ["a", "b"] * 3
    assert times == [[1.0, 1.0], [1.0, 1.0]]


def test_many_calls_share_one_reading_of_the_clock(monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr(clock.time, "perf_counter", lambda: float(next(ticks)))
    calls = []
    assert clock.in_turn([lambda: calls.append(0)], rounds=1, device=CPU, calls=4) == [[0.25]]
    assert len(calls) == 8


def test_what_an_action_returns_is_freed_outside_of_its_time(monkeypatch):
    events = []

    class Result:
        def __del__(self):
            events.append("freed")

    monkeypatch.setattr(clock.time, "perf_counter", lambda: events.append("clock") or 0.0)
    clock.in_turn([Result], rounds=1, device=CPU)
    assert events == ["clock", "clock", "freed"] * 2


class FakeGPU:
    """In place of ``torch.cuda``: the host enqueues, and the GPU begins what is next once it has ended what is before.

    Its clock runs at 1 GHz, and its queue has no end.
    """

    def __init__(self):
        self.host = self.free = 0.0
        self.spins = []

    def synchronize(self):
        self.host = max(self.host, self.free)

    def enqueue(self, seconds, overhead=0.0):
        self.host += overhead
        self.free = max(self.host, self.free) + seconds

    def _sleep(self, cycles):
        self.spins.append(cycles)
        self.enqueue(cycles / 1e9)

    def Event(self, enable_timing):
        gpu = self

        class Event:
            def record(self):
                self.at = max(gpu.host, gpu.free)

            def query(self):
                return self.at <= gpu.host

            def elapsed_time(self, end):
                return 1000 * (end.at - self.at)

        return Event()


@pytest.fixture
def gpu(monkeypatch):
    fake = FakeGPU()
    monkeypatch.setattr(clock.torch, "cuda", fake)
    return fake


def test_a_time_on_a_gpu_has_nothing_of_pythons(gpu):
    """Some 20 us of Python were counted, since the start was recorded on a GPU that had nothing to do."""
    [times] = clock.in_turn([lambda: gpu.enqueue(5e-6, overhead=20e-6)], 2, torch.device("cuda"), calls=10)
    assert times == pytest.approx([5e-6, 5e-6], rel=1e-9)
    assert gpu.spins == [clock._SPIN] * 3


def test_a_spin_that_ended_too_early_is_noticed(gpu):
    """Ten calls of a millisecond of Python take longer than the first spin, of two milliseconds at this clock."""
    [times] = clock.in_turn([lambda: gpu.enqueue(5e-6, overhead=1e-3)], 1, torch.device("cuda"), calls=10)
    assert times == pytest.approx([5e-6], rel=1e-9)
    assert gpu.spins == [clock._SPIN, 4 * clock._SPIN, 16 * clock._SPIN] * 2


def test_an_action_that_waits_for_the_gpu_is_timed_all_the_same(gpu):
    def wait():
        gpu.enqueue(5e-6, overhead=1e-3)
        gpu.synchronize()

    [times] = clock.in_turn([wait], 1, torch.device("cuda"))
    assert gpu.spins[-1] == clock._LONGEST_SPIN
    assert times == pytest.approx([5e-6], rel=1e-9)


# ---- a run ----


def options(**more):
    usual = {"device": "cpu", "threads": 1, "sizes": (4 * KIB,), "rounds": 1, "cases": ("GroupAffine",), "bits": (4,)}
    others = {"groups": (GROUP,), "dtypes": (), "alone": False, "json": None}
    return Namespace(**{**usual, **others, **more})


def test_a_choice_that_fits_nothing_is_said():
    with pytest.raises(BenchError, match=r"no case has 'huffman' in its name; choose from GroupAffine, 8 bits; "):
        measure.run_cases(options(cases=("huffman",)))
    with pytest.raises(BenchError, match="no case has this combination of codec, bits and dtype"):
        measure.run_cases(options(cases=("Positive",), bits=(4,)))


def test_targets_are_for_large_tensors_only(monkeypatch):
    [case] = [case for case in cases() if case.name == "GroupAffine, 4 bits"]
    assert measure._targets(case, "float32", 256 * 2**20, "cpu") == {"compress": 1.3, "decompress": 1.1}
    assert measure._targets(case, "bfloat16", 256 * 2**20, "cpu") == {"compress": 2.0, "decompress": 1.7}
    assert measure._targets(case, "float32", 64 * 2**20, "cpu") == {}
    assert measure._targets(case, "float16", 256 * 2**20, "cpu") == {}
    assert measure._least_achievable(case, "float32", 2**30, "cuda") == 0.9
    assert measure._least_achievable(case, "bfloat16", 2**30, "cuda") == 0.8
    assert measure._least_achievable(case, "bfloat16", 2**30, "cpu") is None
    assert measure._least_achievable(case, "bfloat16", 2**20, "cuda") is None


def test_a_library_that_fails_is_left_out_and_said(monkeypatch):
    def fail(x):
        raise RuntimeError("no kernel\nfor this")

    broken = RoundTrip("torchao", fail, fail, list)
    found = [
        dataclasses.replace(case, rivals=(("torchao", lambda: broken), ("bitsandbytes", lambda: broken)))
        for case in cases()
    ]
    monkeypatch.setattr(measure, "cases", lambda groups: found)
    states = {"torchao": "0.18", "bitsandbytes": "not installed (No module)", "fewbit": "not installed"}
    monkeypatch.setattr(measure, "present", lambda: states)
    results = measure.run_cases(options(dtypes=("float32",)))
    assert results.skipped == ["torchao beside GroupAffine, 4 bits, float32: RuntimeError: no kernel for this"]
    [entry] = results.of(Measurement)
    assert {one.who for one in entry.timings} == {"torch", "actcore", "plain PyTorch"}


def test_what_was_measured_is_written_before_the_next(monkeypatch, tmp_path):
    """What ended the process cost all of it."""
    file = tmp_path / "kernels.json"

    def end(x):
        raise KeyboardInterrupt

    last = dataclasses.replace(
        cases()[0], name="GroupAffine, last", bits=4, contenders=(RoundTrip("actcore", end, end, list),)
    )
    monkeypatch.setattr(measure, "cases", lambda groups: [*cases(groups), last])
    with pytest.raises(KeyboardInterrupt):
        measure.run_cases(options(dtypes=("float32",), alone=True, json=file))
    [entry] = suites.load(file).of(Measurement)
    assert entry.case == "GroupAffine, 4 bits"


def test_a_given_gradient_is_drawn_where_it_is_used(monkeypatch):
    """The host drew it, for a GPU, too: some seconds a gibibyte."""
    drawn, randn = [], torch.randn
    monkeypatch.setattr(
        torch, "randn", lambda *shape, generator, device: drawn.append(device) or randn(*shape, generator=generator)
    )
    list(Pass("torch", torch.relu).contenders(torch.ones(4)))
    assert drawn == [CPU]


def test_a_case_that_fails_is_said_and_others_are_measured(monkeypatch):
    def fail(x):
        raise RuntimeError("CUDA error: misaligned address\nfor this")

    broken = dataclasses.replace(
        cases()[0], name="GroupAffine, broken", bits=4, contenders=(RoundTrip("actcore", fail, fail, list),)
    )
    monkeypatch.setattr(measure, "cases", lambda groups: [broken, *cases(groups)])
    results = measure.run_cases(options(dtypes=("float32",), alone=True))
    broken, other = results.of(Measurement)
    assert broken.failure == "RuntimeError: CUDA error: misaligned address for this"
    assert (other.case, other.failure) == ("GroupAffine, 4 bits", "")
    assert "GroupAffine, broken, 4, float32, 4096: failed: RuntimeError" in words(results)


def test_others_take_turns_of_their_own_and_are_compared_with_their_own_copies():
    [entry] = measure.run_cases(options(dtypes=("float32",))).of(Measurement)
    turns = [(one.beside, one.who, one.what) for one in entry.timings]
    assert turns == [
        (0, "torch", "copy_"),
        (0, "torch", "clone"),
        (0, "actcore", "compress"),
        (0, "actcore", "decompress"),
        (1, "torch", "copy_"),
        (1, "torch", "clone"),
        (1, "plain PyTorch", "compress"),
        (1, "plain PyTorch", "decompress"),
    ]
    plain, copy = entry.timings[6], entry.timings[4]
    assert entry.ratio(plain) == statistics.median(a / b for a, b in zip(plain.seconds, copy.seconds, strict=True))


def test_a_library_that_is_not_there_says_why():
    states = contenders.present()
    assert list(states) == ["bitsandbytes", "torchao", "fewbit"]
    assert all(state.startswith(("not ", "of unknown version")) or state[0].isdigit() for state in states.values())


def test_a_run_from_end_to_end(capsys, tmp_path):
    json_file, picture = tmp_path / "k.json", tmp_path / "k.png"
    command = (
        "kernels --case GroupAffine --bits 4 --dtype float32 --size 4KiB --size 128KiB --rounds 2 --threads 1 --alone"
    )
    assert main.main([*command.split(), "--json", str(json_file), "--chart", str(picture)]) == 0
    shown = capsys.readouterr().out
    assert "compress, 128 KiB a tensor" in shown
    assert "Small tensors" in shown
    results = suites.load(json_file)
    assert [(entry.case, entry.nbytes) for entry in results.of(Measurement)] == [
        ("GroupAffine, 4 bits", 4 * KIB),
        ("GroupAffine, 4 bits", 128 * KIB),
    ]
    assert [(one.who, one.what, len(one.seconds)) for one in results.of(Measurement)[0].timings] == [
        ("torch", "copy_", 2),
        ("torch", "clone", 2),
        ("actcore", "compress", 2),
        ("actcore", "decompress", 2),
    ]
    assert results.machine.threads == 1
    assert set(results.machine.versions) >= {"torch", "actcore"}

    assert main.main(["show", str(json_file), "--chart", str(tmp_path / "again.png")]) == 0
    assert capsys.readouterr().out == shown
    assert (tmp_path / "again.png").read_bytes() == picture.read_bytes()
