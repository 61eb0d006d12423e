"""``python -m bench checkpoint``: a small model through all of it, what fails, what is taken up."""

import os
import sys
from dataclasses import asdict, replace

import pytest
import torch
from torch import nn

from bench.cli import main, suites
from bench.models import architectures
from bench.models.architectures import Architecture, Published
from bench.results.record import save
from bench.runner import child, clock
from bench.runner.child import Ended, here
from bench.runner.process_memory import limit_allocation
from bench.runner.run import Run
from bench.suites.memory.checkpoint import command as measure
from bench.suites.memory.checkpoint import planning, step
from bench.suites.memory.checkpoint.entries import KIND, Peak, Planned, StepTimes
from bench.suites.memory.checkpoint.planning import Planner
from bench.suites.memory.checkpoint.step import Setup, build, loss, make_inputs
from bench.ways.checkpoints import LEAST, LEAST_MASKS, PLAIN, ready
from bench.ways.checkpoints import CheckpointWay as Way
from integrations import checkpoint

from .checkpoint_results import MACHINE
from .checkpoint_results import SETTINGS as RECORDED
from .rendering import words

CPU = torch.device("cpu")
MIB = 2**20


def block(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.Dropout(0.5))


def network():
    return nn.Sequential(*(block(8 if n else 3, 8) for n in range(4)), nn.Flatten(), nn.Linear(8 * 16 * 16, 10))


TINY = Architecture(
    name="tiny",
    library="torch",
    build=network,
    inputs=lambda batch, size: (torch.randn(batch, 3, size, size),),
    batch=8,
    size=16,
    published=Published(100, 70, 0.3),
    blocks=lambda model: list(model)[:4],
)


@pytest.fixture
def tiny(monkeypatch, measured_once):
    """A command that knows one model, and measures in this process, with counters that are known."""
    monkeypatch.setitem(architectures.ARCHITECTURES, "tiny", TINY)
    monkeypatch.setattr(step, "counters", lambda device: Counted())
    requests = []

    def measured(child, function, peak, **options):
        assert function is step.measure_peak
        requests.append(options["way"])
        return here(function, peak, **{name: value for name, value in options.items() if name != "threads"})

    monkeypatch.setattr(measure.Child, "measure", measured)
    monkeypatch.setattr(step, "_limit", lambda nbytes: None)  # of a process that ends thereafter
    return requests


class Counted:
    """Counters of a step whose peak is 64 MiB above what was there before."""

    def live(self):
        return MIB

    def start_peak(self):
        return MIB

    def peak(self):
        return 65 * MIB


def command(*arguments):
    return main.main(["checkpoint", "--model", "tiny", "--rounds", "2", "--threads", "1", *map(str, arguments)])


# a run


def test_a_run_prints_writes_and_draws(tiny, tmp_path, capsys):
    file, picture = tmp_path / "out.json", tmp_path / "out.png"
    assert command("--part", "plan", "--part", "memory", "--part", "time", "--json", file, "--chart", picture) == 0
    printed = capsys.readouterr().out
    assert "Optimal checkpointing" in printed
    assert picture.read_bytes().startswith(b"\x89PNG")
    found = suites.load(file)
    assert [(plan.batch, plan.size) for plan in found.of(Planned)] == [(8, 16), (4, 16)]
    for plan in found.of(Planned):
        assert not plan.failure
        assert plan.peaks == sorted(plan.peaks)
        assert plan.peaks[-1] == plan.plain_bytes > plan.peaks[0] >= plan.bound_bytes
        assert plan.overheads[-1] == 0 < plan.overheads[0]
        assert 0 < plan.paper_cut < 1
        assert plan.segments > 0
    full = {peak.way for peak in found.of(Peak) if peak.batch == 8}
    assert full == {PLAIN, LEAST, "ours, 70 %"}
    ways = [time.way for time in found.of(StepTimes)]
    assert {PLAIN, LEAST, "ours, 70 %", "each block"} <= set(ways)
    assert {(peak.way, peak.batch) for peak in found.of(Peak)} == {
        *((way, 8) for way in full),
        *((way, 4) for way in ways),
    }
    gradients = sum(parameter.nbytes for parameter in network().parameters())
    assert {peak.peak_bytes for peak in found.of(Peak)} == {64 * MIB - gradients}
    for peak in found.of(Peak):
        assert (peak.planned_bytes is None) == (peak.way == "each block")
    for time in found.of(StepTimes):
        assert len(time.seconds) == len(time.plain_seconds) == 2
        if time.way.startswith("ours"):
            assert time.gradients == time.buffers == 0
    assert {entry.commit for entry in found.entries} != {""}
    assert main.main(["show", str(file)]) == 0
    assert capsys.readouterr().out == printed


def test_where_checkpoints_do_not_suffice_masks_are_measured_too(tiny, tmp_path, monkeypatch):
    asked = replace(TINY, published=Published(100, 1, 0.3))
    monkeypatch.setitem(architectures.ARCHITECTURES, "tiny", asked)
    file = tmp_path / "out.json"
    assert command("--part", "memory", "--json", file) == 0
    peaks = {peak.way: peak for peak in suites.load(file).of(Peak)}
    assert set(peaks) == {PLAIN, LEAST, "ours, 1 %", LEAST_MASKS}
    assert "memory must be at least" in peaks["ours, 1 %"].failure
    assert peaks[LEAST_MASKS].planned_bytes  # of no certain size beside LEAST's: workspaces are measured, and may rule
    assert [(way["part"], way["masks"]) for way in tiny] == [(None, False), (None, False), (None, True)]


def test_what_the_file_has_is_not_measured_again(tiny, tmp_path, monkeypatch, capsys):
    file = tmp_path / "out.json"
    assert command("--part", "memory", "--json", file) == 0
    assert [way["kind"] for way in tiny] == ["plain", "planned", "planned"]
    before = suites.load(file)
    assert command("--part", "memory", "--json", file) == 0
    assert len(tiny) == 3
    after = suites.load(file)
    assert after.entries == before.entries
    # What failed is measured again, and takes the place of the failure.
    failed = [replace(peak, failure="x") if peak.way == LEAST else peak for peak in before.of(Peak)]
    save(before.adding(failed), file)
    assert command("--part", "memory", "--json", file) == 0
    assert tiny[3:] == [{"kind": "planned", "part": None, "masks": False}]
    assert {(peak.way, peak.failure) for peak in suites.load(file).of(Peak)} == {
        (one.way, "") for one in before.of(Peak)
    }
    # Results that were made otherwise are no part of these.
    capsys.readouterr()
    assert command("--part", "memory", "--seed", "1", "--json", file) == 1
    assert "holds results of another seed" in capsys.readouterr().err
    assert suites.load(file).settings["seed"] == 0


def test_an_interrupted_run_has_written_what_it_measured(tiny, tmp_path, monkeypatch):
    file = tmp_path / "out.json"

    def interrupted(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(step, "measure_times", interrupted)
    assert command("--part", "memory", "--part", "time", "--json", file) == 130
    found = suites.load(file)
    assert len(found.of(Peak)) > 3
    assert not found.of(StepTimes)


def test_what_fails_is_recorded_and_the_rest_goes_on(tiny, tmp_path, monkeypatch, capsys):
    broken = replace(TINY, published=Published(100, 1, 0.3), blocks=lambda model: [nn.Identity(), None])
    monkeypatch.setitem(architectures.ARCHITECTURES, "tiny", broken)
    file = tmp_path / "out.json"
    assert command("--part", "time", "--json", file) == 0
    found = suites.load(file)
    for entries in (found.of(Peak), found.of(StepTimes)):
        failures = {entry.way: entry.failure for entry in entries if entry.failure}
        assert set(failures) == {"ours, 1 %", "each block"}
        assert "memory must be at least" in failures["ours, 1 %"]
        assert "'NoneType' object has no attribute" in failures["each block"]
        assert {PLAIN, LEAST} <= {entry.way for entry in entries if not entry.failure}
    printed = " ".join(capsys.readouterr().out.split())
    assert "tiny, each block, 4, 16: failed: AttributeError" in printed
    assert "tiny, ours, 1 %, 4, 16: failed: BudgetError" in printed


def test_a_model_that_cannot_be_planned_for(tiny, tmp_path, monkeypatch, capsys):
    def of_no_use(batch, size):
        return (torch.randn(batch, 3, size, size), torch.zeros(1))  # one too many

    monkeypatch.setitem(architectures.ARCHITECTURES, "tiny", replace(TINY, inputs=of_no_use))
    assert command("--part", "plan", "--part", "memory", "--part", "time") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "tiny, 8, 16; tiny, 4, 16" in printed
    assert "tiny, plain, 8, 16: failed: no plan: TypeError" in printed
    assert "tiny, plain, 4, 16" in printed


def test_a_library_that_is_missing(tiny, monkeypatch, capsys):
    monkeypatch.setitem(architectures.ARCHITECTURES, "tiny", replace(TINY, library="no_such_library"))
    assert command("--part", "plan") == 0
    assert "Left out: tiny: no_such_library cannot be imported" in " ".join(capsys.readouterr().out.split())


def test_a_device_that_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main.main(["checkpoint", "--device", "cuda"]) == 1
    assert "device cuda is not available" in capsys.readouterr().err


# peaks


def test_a_process_that_ends_costs_one_peak(monkeypatch, tmp_path, measured_once):
    monkeypatch.setitem(architectures.ARCHITECTURES, "tiny", TINY)
    asked = []

    def ask(worker, request, seconds):
        asked.append(request["options"]["way"]["kind"])
        if asked[-1] == "planned":
            raise Ended(-9, "killed")
        return {"entry": {**request["entry"], "peak_bytes": 5 * MIB}, "more": None}

    monkeypatch.setattr(child.Worker, "ask", ask)
    assert command("--part", "memory", "--json", tmp_path / "out.json") == 0
    assert asked == ["plain", "planned", "planned"]
    plain, *others = suites.load(tmp_path / "out.json").of(Peak)
    assert (plain.way, plain.peak_bytes) == (PLAIN, 5 * MIB)
    assert all("killed" in one.failure and one.planned_bytes for one in others)


@pytest.mark.undisturbed
def test_a_real_process_measures_what_a_plan_saves():
    least = Planner(architectures.ARCHITECTURES["unet"], Setup(CPU)).at(1, 188)
    with child.Child() as process:
        plain, ours = (
            process.measure(step.measure_peak, entry, way=asdict(way), plan=plan, threads=1, **RECORDED)
            for entry, way, plan in (
                (Peak("unet", PLAIN, 1, 188, None, least.plain_peak, 1), Way("plain"), None),
                (Peak("unet", LEAST, 1, 188, None, least.peak, 1), Way("planned"), least.to_json()),
            )
        )
    if plain.failure.startswith("needs Linux"):
        pytest.skip(plain.failure)
    assert not plain.failure
    assert not ours.failure
    assert ours.peak_bytes < plain.peak_bytes
    # What kernels take besides is theirs to say; a measurement of something else is off by more.
    assert 0.9 < plain.agreement < 1.5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")
def test_a_process_can_be_limited():
    if not (fork := os.fork()):
        refused = False
        try:
            limit_allocation(2**26)
            kept = bytearray(2**25)
            bytearray(len(kept) * 4)
        except MemoryError:
            refused = True
        finally:
            os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == (sys.platform == "linux")


def test_a_step_that_takes_too_much_is_recorded(monkeypatch):
    monkeypatch.setattr(step, "counters", lambda device: Counted())

    def too_much(*given):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.\nSecond line.")

    monkeypatch.setattr(step, "build", too_much)
    monkeypatch.setattr(step, "_limit", lambda nbytes: None)
    monkeypatch.setitem(architectures.ARCHITECTURES, "tiny", TINY)
    blank = Peak("tiny", PLAIN, 8, 16, None, 1000, 8)
    options = {"way": asdict(Way("plain")), "plan": None, **RECORDED}
    peak = here(step.measure_peak, blank, **options)
    assert peak.peak_bytes is None
    assert peak.planned_bytes == 1000
    assert peak.failure.startswith("RuntimeError: DefaultCPUAllocator: can't allocate memory")
    monkeypatch.setattr(step, "counters", lambda device: "no Linux")
    assert here(step.measure_peak, blank, **options).failure == "no Linux"


def test_a_batch_that_does_not_fit_is_halved():
    planner = Planner(TINY, Setup(CPU))
    plans = {batch: planner.at(batch, 16) for batch in (12, 8, 4)}
    need = {batch: plan.plain_peak + 2 * plan.graph.gradients for batch, plan in plans.items()}
    assert planning.fitting(planner, 12, 16, need[12]) == 12
    assert planning.fitting(planner, 12, 16, need[12] - 1) == 8
    assert planning.fitting(planner, 12, 16, need[4]) == 4
    assert planning.fitting(planner, 12, 16, 1) == 1


# steps


def test_each_way_trains_the_same(measured_once):
    """Dropout and BatchNorm included; per-block checkpointing updates the statistics twice, and that shows."""
    planner = Planner(TINY, Setup(CPU))
    ways = {
        way: planner.of(way, 4, 16)
        for way in (
            Way("planned"),
            Way("planned", 0.8),
            Way("planned", masks=True),
            Way("blocks"),
        )
    }
    plain, least, budget, masks, blocks = step.measure_times(TINY, 4, 16, ways, 1, Setup(CPU))
    assert plain.way == PLAIN
    assert plain.ratio == 1.0
    assert least.gradients == least.buffers == budget.gradients == budget.buffers == 0
    assert masks.gradients == masks.buffers == 0
    assert blocks.gradients == 0
    assert blocks.buffers > 0
    assert least.plain_seconds == plain.seconds


def test_gradients_that_differ_are_seen(monkeypatch):
    def wrong(way, model, blocks, plan):
        return lambda x: 1.5 * model(x)

    monkeypatch.setattr(step, "ready", wrong)
    _, found = step.measure_times(TINY, 4, 16, {Way("blocks"): None}, 1, Setup(CPU))
    assert found.gradients > 0
    assert found.buffers == 0
    ones = torch.ones(2)
    assert step.difference({"a": ones, "b": ones}, {"a": ones, "b": torch.tensor([4.0, 1.0])}) == 0.75
    with pytest.raises(ValueError, match="weight has a gradient in plain training or in this one"):
        step.difference({}, {"weight": torch.ones(1)})


def test_the_gradient_of_every_output_is_noise():
    def forward(x):
        return {"a": x * 2, "b": [x * 3, "not a tensor"]}

    x = torch.zeros(4, requires_grad=True)
    loss(forward, (x,), 7).backward()
    generator = torch.Generator().manual_seed(7)
    expected = 2 * torch.randn(4, generator=generator) + 3 * torch.randn(4, generator=generator)
    assert torch.equal(x.grad, expected)


def test_ways_by_name_and_what_they_do(monkeypatch):
    assert Way("planned", 0.37).name == "ours, 37 %"
    assert Way("compiled", 0.1).name == "torch.compile, 0.1"
    seen = []

    def compiled(model):
        return lambda *args: seen.append(torch._functorch.config.activation_memory_budget) or model(*args)

    monkeypatch.setattr(torch, "compile", compiled)
    model = build(TINY, Setup(CPU))
    ready(Way("compiled", 0.1), model, [], None)(*make_inputs(TINY, 2, 16, Setup(CPU)))
    assert seen == [0.1]
    assert torch._functorch.config.activation_memory_budget == 1.0
    with pytest.raises(ValueError, match="plan must be given for ours, least"):
        ready(Way("planned"), model, [], None)
    forward = ready(Way("planned"), model, [], checkpoint.plan(model, make_inputs(TINY, 2, 16, Setup(CPU))))
    assert forward is model
    checkpoint.restore_model(model)


def test_commits_that_are_mixed_are_named(tmp_path):
    file = tmp_path / "a.json"
    Run(KIND, MACHINE, RECORDED, file).add(Planned("tiny", 8, 16, failure="none"))
    later = Run(KIND, replace(MACHINE, commit="f" * 40, dirty=True), RECORDED, file)
    later.add(Planned("tiny", 4, 16, failure="none"))
    assert "Measured with commits 0123456789, ffffffffff+" in words(later.record)
    assert [plan.commit for plan in suites.load(file).of(Planned)] == ["0123456789", "ffffffffff+"]


def test_parts_that_take_minutes_are_asked_for(tiny, monkeypatch):
    ran = []
    parts = {part: lambda part=part: ran.append(part) for part in measure.PARTS}
    monkeypatch.setattr(measure.Measured, "parts", parts)
    assert command() == 0
    assert ran == ["plan", "memory", "time"]
    assert command("--compile", "tiny") == 0
    assert ran[3:] == ["plan", "memory", "time", "compile"]
    assert clock.median_ratio([2.0], [1.0]) == 2.0


def test_channels_last_is_the_order_of_model_and_images():
    setup = Setup(CPU, channels_last=True)
    model, (images,) = build(TINY, setup), make_inputs(TINY, 2, 16, setup)
    orders = [images, *(one for one in model.parameters() if one.dim() == 4)]
    assert all(one.is_contiguous(memory_format=torch.channels_last) for one in orders)
