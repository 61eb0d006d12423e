"""What ``python -m bench systems --gpu`` measures, as far as a machine without a GPU can tell."""

import contextlib
import time
from argparse import Namespace
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch._C._autograd import DeviceType
from torch.utils._python_dispatch import TorchDispatchMode

from bench import cli, process_memory, records, step_clock
from bench.benches import BENCHES
from bench.deadline import Deadline
from bench.layout import console
from bench.machine import Machine
from bench.record.child import here
from bench.record.record import Record
from bench.records import shown
from bench.systems import cell as cells
from bench.systems import device, gpu_subjects, measure, ways
from bench.systems.results import Cell, Figures
from bench.systems.subjects import NAMES, made
from bench.systems.ways import PLAIN, WAYS
from bench.workers import TooLong

MACHINE = Machine("a GPU", 2, "Linux", {"torch": "2.15.0"}, "0123", False, "python", "today")
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_what_is_measured_is_known():
    assert set(gpu_subjects.SUBJECTS) <= set(NAMES)
    assert set(gpu_subjects.WAYS) <= set(WAYS)
    assert gpu_subjects.WAYS[:2] == (PLAIN, "L1")  # of all models first


def test_the_llama_has_a_billion_parameters():
    with torch.device("meta"):
        llama = gpu_subjects.SUBJECTS["llama-8"](gpu_subjects.SIZES["cuda"])
    count = sum(parameter.numel() for parameter in llama.model.parameters())
    # Of each layer: queries and outputs, keys and values, the three of the MLP, two norms; embeddings, tied; a norm.
    layer = 2 * 2048**2 + 2 * 2048 * 512 + 3 * 2048 * 8192 + 2 * 2048
    assert count == 16 * layer + 32_000 * 2048 + 2048
    assert 1.0e9 < count < 1.1e9
    assert {parameter.dtype for parameter in llama.model.parameters()} == {torch.bfloat16}
    assert llama.inputs["input_ids"].shape == (8, 2048)


@pytest.mark.parametrize("name", ["resnet50-tf32", "vit-amp"])  # a Llama's mask asks for values
def test_a_step_of_a_subject_at_a_gpu_s_size(name):
    """On the meta device, which computes shapes alone."""
    with torch.device("meta"):
        subject = gpu_subjects.SUBJECTS[name](gpu_subjects.SIZES["cuda"])
        loss = subject.step(subject.model.train())
    loss.backward()
    assert loss.shape == ()
    assert all(parameter.grad is not None for parameter in subject.model.parameters())
    assert len(subject.blocks) == (12 if "vit" in name else 16)  # ResNet-50 has 3 + 4 + 6 + 3


@pytest.mark.parametrize("way", [PLAIN, "plan, 50 %, exact"])
def test_a_cell_with_figures(way, counted):
    options = {"rounds": 1, "device": "cpu", "seed": 0}
    found = Cell.of(here(cells.measure, Cell("llama-1", way), figures=True, **options).content())
    assert not found.failure
    assert found.error == 0
    assert len(found.figures.host_seconds) == len(found.figures.cpu_seconds) == 3
    assert found.figures.launches == 0  # of kernels there are none
    assert not found.figures.not_profiled
    assert found.figures.allocated_bytes is None
    planned = found.planned_bytes, found.planned_plain_bytes
    assert planned == (None, None) if way == PLAIN else 0 < planned[0] < planned[1]
    assert here(cells.measure, Cell("llama-1", way), **options).figures is None


def test_a_plan_is_made_under_the_autocast_that_steps_run_in(monkeypatch):
    """Made without it, it was another step's: the first forward made a plan of its own."""
    subject, seen = made("resnet50-amp", 0, CPU), []

    def planned(model, *given, **options):
        seen.append(torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None)
        raise ValueError("no plan")

    monkeypatch.setattr(ways.planning, "plan", planned)
    with pytest.raises(ways.DoesNotApply):
        WAYS["checkpoint, least"].ready(subject)
    assert seen == [torch.bfloat16]
    output = subject.step(lambda x: torch.mm(x.new_ones(2, 2, dtype=torch.float32), x.new_ones(2, 1000)))
    assert output.dtype == torch.float32  # the loss, as autocast has it


def test_products_are_rounded_to_tf32_while_a_subject_is_measured():
    before = torch.get_float32_matmul_precision()
    with made("resnet50-tf32", 0, CPU).precisely():
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before
    with made("resnet50-amp", 0, CPU).precisely():
        assert torch.get_float32_matmul_precision() == before


def event(name, start, end, kind=DeviceType.CUDA, note=False):
    return SimpleNamespace(
        name=name,
        device_type=kind,
        time_range=SimpleNamespace(start=start, end=end),
        is_user_annotation=note,
    )


EVENTS = [
    event("aten::mm", 0, 50, DeviceType.CPU),
    event("cudaLaunchKernel", 1, 2, DeviceType.CPU),
    event("cudaLaunchKernelExC", 3, 4, DeviceType.CPU),
    event("cuLaunchKernelEx", 3, 4, DeviceType.CPU),
    event("cudaMemcpyAsync", 3, 4, DeviceType.CPU),
    event("a range of the user's", 0, 10**6, note=True),
    event("gemm", 100, 200),
    event("elementwise", 150, 250),  # beside the one before, on another stream
    event("Memcpy DtoD (Device -> Device)", 300, 320),
    event("Memcpy DtoH (Device -> Pinned)", 240, 310),  # 10 beside a kernel, and 10 beside a copy on the device
    event("Memcpy HtoD (Pinned -> Device)", 400, 430),
]


class Profiled:
    def __init__(self, events):
        self._events = events

    def __call__(self, activities):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *of):
        pass

    def events(self):
        return self._events


@pytest.fixture
def cuda(monkeypatch):
    """What of ``torch.cuda`` waits for a device or counts its memory; a list of what was called."""
    calls = []

    def called(name, result=None):
        return lambda *given: calls.append(name) or result

    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats", "reset_peak_host_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, called(name), raising=False)
    stats = {
        f"{name}_bytes.all.peak": size for size, name in enumerate(("requested", "allocated", "active", "reserved"))
    }
    monkeypatch.setattr(torch.cuda, "memory_stats", called("memory_stats", stats))
    monkeypatch.setattr(torch.cuda, "host_memory_stats", lambda: {"active_bytes.peak": 7}, raising=False)
    monkeypatch.setattr(torch.cuda, "memory_allocated", called("memory_allocated", 100))
    return calls


def test_what_the_profiler_tells(monkeypatch, cuda):
    monkeypatch.setattr(device, "profile", Profiled(EVENTS))
    found = device.profiled(Figures(), lambda: None, CUDA)
    assert found.launches == 3
    assert found.busy_seconds == pytest.approx((150 + 20) * 1e-6)
    assert found.copy_seconds == pytest.approx((70 + 30) * 1e-6)
    assert found.hidden == pytest.approx(20 / 100)
    assert not found.not_profiled


def test_a_profiler_that_sees_nothing_costs_no_cell(monkeypatch, cuda):
    monkeypatch.setattr(device, "profile", Profiled([]))
    assert "seen no kernel" in device.profiled(Figures(), lambda: None, CUDA).not_profiled

    def broken(activities):
        raise RuntimeError("CUPTI is not there")

    monkeypatch.setattr(device, "profile", broken)
    found = device.profiled(Figures(kept_bytes=1), lambda: None, CUDA)
    assert (found.kept_bytes, found.not_profiled) == (1, "RuntimeError: CUPTI is not there")


class Graph:
    """As ``torch.cuda.CUDAGraph``, whose capture is what runs in ``torch.cuda.graph``."""

    def __init__(self, calls):
        self.calls = calls

    def replay(self):
        self.calls.append("replay")

    def reset(self):
        self.calls.append("reset")


@pytest.fixture
def graphs(monkeypatch, cuda):
    """What a capture calls, beside ``cuda``."""
    stream = SimpleNamespace(wait_stream=lambda other: None)
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda device: stream)
    for name in ("stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, lambda given, name=name: contextlib.nullcontext(cuda.append(name)))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: Graph(cuda))
    return cuda


def test_a_captured_step_is_timed_by_its_replays(graphs):
    weight, steps = torch.ones((), requires_grad=True), []
    found = device.captured(Figures(kept_bytes=1), lambda: steps.append("graph" in graphs) or weight * 2, CUDA)
    assert steps == [False] * 3 + [True]
    assert len(found.captured_seconds) == 5
    assert graphs.count("replay") == 2 * (1 + 5)
    assert (found.kept_bytes, found.not_captured, graphs[-1]) == (1, "", "reset")


def test_a_step_that_cannot_be_captured_costs_no_cell(graphs):
    weight = torch.ones((), requires_grad=True)

    def step():
        if "graph" in graphs:
            raise RuntimeError("operation not permitted when stream is capturing")
        return weight * 2

    found = device.captured(Figures(kept_bytes=1), step, CUDA)
    assert found == Figures(kept_bytes=1, not_captured="RuntimeError: operation not permitted when stream is capturing")
    assert graphs[-1] == "reset"
    assert device.captured(Figures(), step, torch.device("cpu")) == Figures()


def test_peaks_of_the_allocator_are_of_steps_that_nothing_waits_between(cuda):
    found = process_memory.allocator_peaks(lambda: cuda.append("steps"), CUDA)
    assert (found.before, found.requested, found.allocated, found.active, found.reserved) == (100, 0, 1, 2, 3)
    assert found.pinned == 7
    assert cuda == [
        "synchronize",
        "empty_cache",  # so that what is reserved is of these steps
        "reset_peak_memory_stats",
        "reset_peak_host_memory_stats",
        "memory_allocated",
        "steps",
        "synchronize",
        "memory_stats",
    ]


def test_the_most_that_an_operator_has_for_itself(monkeypatch):
    now = {"bytes": 0, "peak": 0}
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda *of: now["bytes"])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda *of: now["peak"])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda *of: now.update(peak=now["bytes"]))

    class Allocator(TorchDispatchMode):
        """A product takes 1000 bytes for itself and 64 that stay; all else takes 2000 that stay."""

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            product = func is torch.ops.aten.mm.default
            now["bytes"] += 64 if product else 2000
            now["peak"] = now["bytes"] + 1000 * product
            return func(*args, **(kwargs or {}))

    weight = nn.Parameter(torch.ones(3, 3))
    with Allocator():
        found = device.with_workspaces(Figures(), lambda: torch.mm(weight, weight).sum())
    assert (found.workspace_bytes, found.workspace_of) == (1000, "aten.mm.default")


def test_figures_on_cuda(monkeypatch, cuda, counted):
    left = iter((100, 132, 100))  # bytes in tensors: before the steps, and before and after cuBLAS's are released
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda *of: next(left))
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: cuda.append("cuBLAS"), raising=False)
    weight = nn.Parameter(torch.ones(3))
    found = device.figures(lambda: weight.sum(), lambda: cuda.append("step"), counted, CUDA)
    assert (found.before_bytes, found.active_bytes, found.reserved_bytes, found.pinned_bytes) == (100, 2, 3, 7)
    assert found.blas_bytes == 32
    assert torch.equal(weight.grad, torch.full((3,), 3.0))  # three steps, which add to what is there
    # Nothing waits while a step is issued.
    assert cuda[:6] == ["synchronize", "step"] * 3


def test_the_time_of_a_step_has_python_s_part_on_cuda(monkeypatch, cuda):
    """Behind a spin of the GPU, as operators are timed, a step that waits for Python looked as quick as one that does
    not."""
    now = [0.0]

    def step(seconds):
        cuda.append("step")
        now[0] += seconds  # the host issues it, and nothing else takes time

    monkeypatch.setattr(step_clock.time, "perf_counter", lambda: now[0])
    found = step_clock.steps_in_turn([lambda: step(1.0), lambda: step(3.0)], 2, CUDA)
    assert found == [[1.0, 1.0], [3.0, 3.0]]
    assert cuda == ["synchronize", "step", "step", "synchronize"] * 6  # the host runs ahead between two


class Processes:
    """Stands for those that measure cells, by a function of a cell."""

    def __init__(self, measured):
        self.ends, self._measured = 0, measured

    def measure(self, cell, request, seconds):
        return self._measured(cell)

    def __enter__(self):
        return self

    def __exit__(self, *of):
        pass

    def end(self):
        self.ends += 1


class Until(Deadline):
    """Comes when so many cells were asked for."""

    def __init__(self, count, asked):
        super().__init__(100)
        object.__setattr__(self, "_count", count)
        object.__setattr__(self, "_asked", asked)

    @property
    def over(self):
        return len(self._asked) >= self._count


@pytest.fixture
def asked(monkeypatch):
    """The cells that were asked for, none of which is measured: L1 fails, and each of ``slow`` takes too long."""
    found = []

    def measured(cell):
        found.append((cell.subject, cell.way))
        if cell.subject == "slow":
            raise TooLong("it was not done in 25 seconds")
        return replace(cell, failure="it ended" if cell.way == "L1" else "")

    process = Processes(measured)
    monkeypatch.setattr(cells, "Processes", lambda threads: process)
    monkeypatch.setattr(measure, "require", lambda name: None)
    return SimpleNamespace(cells=found, process=process)


def options(count, found, models=("one", "other")):
    ways, within = (PLAIN, "L1", "L1.2"), Until(count, found.cells)
    return Namespace(
        models=models, ways=ways, timed=True, rounds=1, device="cpu", threads=1, seed=0, json=None, part="ways",
        on_gpu=True, within=within,
    )  # fmt: skip


def test_what_is_worth_most_is_measured_before_the_deadline(asked):
    results = measure.run(options(3, asked))
    assert asked.cells == [("one", PLAIN), ("other", PLAIN), ("one", "L1")]
    assert len(results.entries) == 3
    [left] = results.skipped
    assert left == "the deadline of 100 s came before L1 of other; L1.2 of one, other"
    assert asked.process.ends == 1  # after the one that failed


def test_what_pins_most_of_the_host_s_memory_waits_for_all_others(asked, monkeypatch):
    monkeypatch.setattr(measure, "LAST", {("one", PLAIN)})
    measure.run(options(10, asked))
    assert asked.cells[-1] == ("one", PLAIN)
    assert ("other", PLAIN) in asked.cells


def test_what_takes_too_long_is_a_row_and_what_the_deadline_ended_is_none(asked):
    results = measure.run(options(10, asked, ("slow", "other")))
    assert results.find(Cell, subject="slow", way=PLAIN).failure == "it was not done in 25 seconds"
    assert results.find(Cell, subject="other", way="L1.2") is not None
    assert not results.skipped
    asked.cells.clear()
    results = measure.run(options(1, asked, ("slow", "other")))
    assert not results.entries
    assert "came before plain of slow, other; L1" in results.skipped[0]


@pytest.mark.parametrize(
    ("arguments", "compiled"),
    [(("--gpu",), True), (("--gpu", "--quick"), False), (("--gpu", "--quick", "--compile"), True)],
)
def test_what_a_gpu_is_measured_with(monkeypatch, arguments, compiled):
    found = []

    def run(options):
        found.append(options)
        return Record("systems", MACHINE, {"device": "cpu", "seed": 0})

    monkeypatch.setattr(cli, "BENCHES", {"systems": replace(BENCHES["systems"], run=run)})
    assert cli.main(["systems", *arguments, "--deadline", "50"]) == 0
    [given] = found
    assert given.models == list(gpu_subjects.SUBJECTS)
    assert ("torch.compile, budget 0.5" in given.ways) is compiled
    assert given.on_gpu
    assert given.within.seconds == 50
    assert given.within.start <= time.monotonic()


def figures(**others):
    return Figures(1 << 20, [0.01], [0.02], launches=1234, busy_seconds=0.005, **others)


def test_the_report_has_what_was_planned_beside_what_was_measured(tmp_path):
    mib = 1 << 20
    found = Record(
        "systems",
        MACHINE,
        {"device": "cuda", "seed": 0},
        [
            Cell("llama-1", PLAIN, "a Llama", 100 * mib, 0.0, [0.1], [0.1], figures=figures(
                allocated_bytes=300 * mib, reserved_bytes=400 * mib, workspace_bytes=8 * mib, workspace_of="aten.mm"
            )),
            Cell("llama-1", "L4bit-swap", "a Llama", 40 * mib, 0.1, [0.1], [0.1], figures=figures(
                copy_seconds=0.002, hidden=0.75, not_profiled="no CUPTI."
            )),
            Cell("llama-1", "plan, 50 %, exact", "a Llama", 55 * mib, 0.0, [0.1], [0.1], planned_bytes=50 * mib,
                 planned_plain_bytes=98 * mib, figures=figures(captured_seconds=[0.003, 0.004], not_captured="no.")),
        ],
    )  # fmt: skip
    file = tmp_path / "out.json"
    records.save(found, file)
    assert records.load(file) == found
    output = console()
    with output.capture() as captured:
        output.print(shown(found))
    text = " ".join(captured.get().split())
    assert "plan, 50 %, exact 1.0 50.0 98.0 55.0" in text
    assert "L4bit-swap 100.0 100.0 10.0 20.0 1,234 5.0 2.0 75" in text
    assert "llama-1, plan, 50 %, exact: the measured peak is 5.0 MiB above the planned one, plain's 2.0 MiB." in text
    assert "llama-1, plain: the most that an operator had for itself: 8.0 MiB, aten.mm." in text
    assert "llama-1, L4bit-swap was not profiled: no CUPTI." in text
    assert "llama-1, plan, 50 %, exact was not captured: no." in text
    assert "plan, 50 %, exact 100.0 100.0 10.0 20.0 1,234 5.0 3.5" in text
    assert "this was no GPU" not in text
