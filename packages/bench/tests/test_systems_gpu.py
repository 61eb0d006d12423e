"""What ``python -m bench systems --gpu`` measures, as far as a machine without a GPU can tell."""

import time
from argparse import Namespace
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from bench.cli import main, suites
from bench.cli.suites import BENCHES
from bench.results.machine import Machine
from bench.results.record import Record, save
from bench.runner.child import TooLong, here
from bench.runner.run import Deadline
from bench.suites.memory.systems import cell as cells
from bench.suites.memory.systems import command, subjects
from bench.suites.memory.systems.entries import Cell, Figures
from bench.suites.memory.systems.subjects import NAMES, made
from bench.ways import general as ways
from bench.ways.general import PLAIN, WAYS

from .rendering import words

MACHINE = Machine("a GPU", 2, "Linux", {"torch": "2.15.0"}, "0123", False, "python", "today")
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_what_is_measured_is_known():
    assert set(subjects.GPU_SUBJECTS) <= set(NAMES)
    assert set(subjects.GPU_WAYS) <= set(WAYS)
    assert subjects.GPU_WAYS[:2] == (PLAIN, "L1")  # of all models first


def test_the_llama_has_a_billion_parameters():
    with torch.device("meta"):
        llama = subjects.GPU_SUBJECTS["llama-8"](subjects.GPU_SIZES["cuda"])
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
        subject = subjects.GPU_SUBJECTS[name](subjects.GPU_SIZES["cuda"])
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
            raise TooLong("it did not finish in 25 seconds")
        return replace(cell, failure="it ended" if cell.way == "L1" else "")

    process = Processes(measured)
    monkeypatch.setattr(cells, "Processes", lambda threads: process)
    monkeypatch.setattr(command, "require", lambda name: None)
    return SimpleNamespace(cells=found, process=process)


def options(count, found, models=("one", "other")):
    ways, within = (PLAIN, "L1", "L1.2"), Until(count, found.cells)
    return Namespace(
        models=models, ways=ways, timed=True, rounds=1, device="cpu", threads=1, seed=0, json=None, part="ways",
        on_gpu=True, within=within,
    )  # fmt: skip


def test_what_is_worth_most_is_measured_before_the_deadline(asked):
    results = command.run(options(3, asked))
    assert asked.cells == [("one", PLAIN), ("other", PLAIN), ("one", "L1")]
    assert len(results.entries) == 3
    [left] = results.skipped
    assert left == "the deadline of 100 s came before L1 of other; L1.2 of one, other"
    assert asked.process.ends == 1  # after the one that failed


def test_what_pins_most_of_the_host_s_memory_waits_for_all_others(asked, monkeypatch):
    monkeypatch.setattr(command, "LAST", {("one", PLAIN)})
    command.run(options(10, asked))
    assert asked.cells[-1] == ("one", PLAIN)
    assert ("other", PLAIN) in asked.cells


def test_what_takes_too_long_is_a_row_and_what_the_deadline_ended_is_none(asked):
    results = command.run(options(10, asked, ("slow", "other")))
    assert results.find(Cell, subject="slow", way=PLAIN).failure == "it did not finish in 25 seconds"
    assert results.find(Cell, subject="other", way="L1.2") is not None
    assert not results.skipped
    asked.cells.clear()
    results = command.run(options(1, asked, ("slow", "other")))
    assert not results.entries
    assert "came before plain of slow, other; L1" in results.skipped[0]


@pytest.mark.parametrize(("arguments", "compiled"), [(("--gpu",), True), (("--gpu", "--quick"), False)])
def test_what_a_gpu_is_measured_with(monkeypatch, arguments, compiled):
    found = []

    def run(options):
        found.append(options)
        return Record("systems", MACHINE, {"device": "cpu", "seed": 0})

    monkeypatch.setattr(main, "BENCHES", {"systems": replace(BENCHES["systems"], run=run)})
    assert main.main(["systems", *arguments, "--deadline", "50"]) == 0
    [given] = found
    assert given.models == list(subjects.GPU_SUBJECTS)
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
    save(found, file)
    assert suites.load(file) == found
    text = words(found)
    assert "plan, 50 %, exact 1.0 50.0 98.0 55.0" in text
    assert "L4bit-swap 100.0 100.0 10.0 20.0 1,234 5.0 2.0 75" in text
    assert "llama-1, plain: the most that an operator had for itself: 8.0 MiB, aten.mm." in text
    assert "llama-1, L4bit-swap was not profiled: no CUPTI." in text
    assert "llama-1, plan, 50 %, exact was not captured: no." in text
    assert "plan, 50 %, exact 100.0 100.0 10.0 20.0 1,234 5.0 3.5" in text
    assert "this was no GPU" not in text
