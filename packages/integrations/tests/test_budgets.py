"""The forms in which a memory budget may be written: bytes, fractions, percentages, "least" and "auto"."""

import json
import math

import pytest
import torch
from torch import nn

import integrations
from integrations import checkpoint
from integrations.api.error_control import rank_0_plan
from integrations.cli import main
from integrations.planner import free_memory
from integrations.planner.bounds import Bounds
from integrations.planner.budget import allowed_bytes, require_budget, resolve_bytes

from .fit_llama import config_of, llama, sample
from .nets import assert_same, gradients, normal
from .recompute_levels import deep

pytestmark = pytest.mark.usefixtures("following_takes_no_time")
MIB = 1 << 20


@pytest.mark.parametrize(
    ("budget", "expected"),
    [(1000, 1000), ("1KiB", 1024), ("1B", 1), ("2 GB", 2 * 10**9), (0.4, 40), ("40%", 40), ("2.5 %", 2), ("100%", 100)],
)
def test_a_budget_in_bytes(budget, expected):
    assert resolve_bytes(budget, 100) == allowed_bytes(budget, 100) == expected


@pytest.mark.parametrize("budget", [1, "140%", "0%", "most", 1.5, "8"])
def test_a_budget_that_says_nothing_is_refused(budget):
    with pytest.raises(ValueError, match=r"^memory must"):
        require_budget(budget, "memory")


def test_one_is_asked_about():
    """``memory=1`` was one byte, and most who write it mean all of the plain step's memory."""
    model, args = deep()
    for call in (
        lambda: integrations.compress_model(model, memory=1),
        lambda: integrations.plan(model, args, memory=1),
        lambda: integrations.compress_model(model, checkpoint=1),
        lambda: integrations.fit(config_of(), memory=1),
    ):
        with pytest.raises(ValueError, match=r"got 1: write 1\.0 for the whole .*, or '1B' for one byte"):
            call()
    assert "forward" not in model.__dict__


def test_a_percentage_is_the_fraction():
    model, args = deep()
    found, expected = (integrations.plan(model, args, memory=budget) for budget in ("60%", 0.6))
    assert found.choice == expected.choice
    assert found.accumulating.choice == expected.accumulating.choice
    assert found.memory == "60%"
    inputs = [(normal(40, 8, 64),), (normal(10, 10, 64),)]
    several = integrations.plan(model, inputs, memory="70%")  # of the larger one's peak
    assert several.memory == several.also[0].memory == int(0.7 * several.plain_peak)
    with pytest.raises(
        ValueError, match=r"memory .* must be at least .* got '5%'; pass memory=0\.\d+, or memory='least'"
    ):
        integrations.plan(model, args, memory="5%")


def test_the_least_is_asked_for_by_name():
    model, args = deep()
    plain = gradients(model, *args)
    model.zero_grad()
    found = integrations.plan(model, args, memory="least")
    assert found.choice == found.front[0]
    assert found.accumulating.choice == found.accumulating.front[0]
    assert integrations.plan(model, args, memory="least", time=1.2) == found.within("least", 1.2)
    assert found.within(time=1.2).peak == found.within("least", 1.2).peak > found.peak
    integrations.compress_model(model, memory="least")
    assert_same(gradients(model, *args), plain)
    handle = integrations.compression(model)
    assert handle.plan.choice == found.choice
    assert "plan(memory='least', error=0)" in handle.report().title
    assert checkpoint.plan(model, args, budget="least").choice == checkpoint.plan(model, args).choice


def test_the_words_of_a_budget_are_saved():
    for memory in ("least", "auto", "40%", 0.4, "8GiB", 10):
        bounds = Bounds(memory, fallback="least")
        assert Bounds.of(json.loads(json.dumps(bounds.content()))) == bounds
    model, args = deep()
    integrations.compress_model(model, memory="least")
    gradients(model, *args)
    state = json.loads(json.dumps(integrations.compression(model).state_dict()))
    twin = integrations.compress_model(deep()[0], memory="50%")
    integrations.compression(twin).load_state_dict(state)
    assert integrations.compression(twin).memory == "least"
    assert integrations.compression(twin).plan == integrations.compression(model).plan


# ---- what is free ----


def machine(monkeypatch, tmp_path, available, limit=None, used=0, inactive=0):
    """Make this machine one of 100 MiB in all, with a control group or without."""
    kib = [f"MemTotal: {100 * 1024} kB", "MemFree: 1 kB", f"MemAvailable: {available >> 10} kB"]
    (tmp_path / "meminfo").write_text("\n".join(kib))
    (tmp_path / "cgroup").write_text("1:name=systemd:/\n0::/jobs/mine\n")
    group = tmp_path / "jobs"  # the limit is that of the group around the process's own
    (group / "mine").mkdir(parents=True)
    (group / "memory.max").write_text("max" if limit is None else str(limit))
    (group / "memory.current").write_text(str(used))
    (group / "memory.stat").write_text(f"anon 5\ninactive_file {inactive}\n")
    monkeypatch.setattr(free_memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(free_memory, "_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(free_memory, "_CGROUPS", tmp_path)


def test_what_is_free_on_a_cpu(monkeypatch, tmp_path):
    machine(monkeypatch, tmp_path, available=64 * MIB)
    assert free_memory.measure_room(torch.device("cpu")) == (64 * MIB, 100 * MIB)


def test_what_a_control_group_leaves(monkeypatch, tmp_path):
    machine(monkeypatch, tmp_path, available=64 * MIB, limit=50 * MIB, used=40 * MIB, inactive=8 * MIB)
    assert free_memory.measure_room(torch.device("cpu")) == (18 * MIB, 50 * MIB)


def test_what_is_free_on_a_gpu(monkeypatch):
    """Blocks that torch has reserved are free; a limit that a process sets itself counts."""
    for name, value in {
        "is_available": True,
        "mem_get_info": (30, 100),
        "memory_allocated": 20,
        "memory_reserved": 25,
        "get_per_process_memory_fraction": 1.0,
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *device, value=value: value)
    device = torch.device("cuda")
    assert free_memory.measure_room(device) == (35, 100)
    assert free_memory.training_memory("auto", device) == 55
    assert free_memory.training_memory("90%", device) == free_memory.training_memory(0.9, device) == 90
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 0.4)
    assert free_memory.measure_room(device) == (20, 40)


def test_what_training_will_take_is_left_out(monkeypatch, tmp_path):
    """Gradients and states that exist are allocated already. Without an optimizer, AdamW is assumed."""
    machine(monkeypatch, tmp_path, available=64 * MIB)
    model = nn.Sequential(nn.Linear(256, 256, bias=False), nn.Linear(256, 256, bias=False))
    model[1].requires_grad_(False)
    one, margin = 256 * 256 * 4, 5 * MIB
    found = free_memory.free_for(model)
    assert (found.gradients, found.states, found.optimizer, found.margin) == (one, 2 * one, "adamw", margin)
    assert found.nbytes == 64 * MIB - 3 * one - margin
    optimizer = torch.optim.SGD([model[0].weight], lr=0.1, momentum=0.9)
    assert free_memory.free_for(model).states == one
    model(torch.randn(2, 256)).sum().backward()
    assert free_memory.free_for(model).gradients == 0
    optimizer.step()
    assert free_memory.free_for(model).states == 0


def test_auto_keeps_to_what_is_free(monkeypatch, tmp_path):
    model, args = deep()
    plan = integrations.plan(model, args, memory=0.6)
    room = free_memory.free_for(model)
    taken = room.gradients + room.states + int(free_memory.RESERVE * 100 * MIB)
    machine(monkeypatch, tmp_path, available=(int(0.6 * plan.plain_peak) + taken + 2048) // 1024 * 1024)
    allowed = free_memory.free_for(model).nbytes
    integrations.compress_model(model, memory="auto")
    gradients(model, *args)
    handle = integrations.compression(model)
    assert handle.plan.peak <= allowed < plan.plain_peak
    assert (handle.memory, handle.plan.memory) == ("auto", f"{allowed}B")
    assert "plan(memory='auto', error=0)" in handle.report().title
    integrations.restore_model(model).zero_grad()
    assert integrations.plan(model, args, memory="auto").peak <= allowed
    assert checkpoint.plan(model, args, budget="auto").peak <= allowed


def test_a_resumed_run_keeps_to_what_was_free():
    """Inputs that do not fit are refused by the bytes of the run before."""
    (model, (x,)), (other, _) = deep(), deep()
    for one in (model, other):
        integrations.compress_model(one, memory="auto")
    gradients(model, x)
    handle = integrations.compression(other)
    handle.load_state_dict(integrations.compression(model).state_dict())
    assert handle.memory == "auto"
    manager = handle._plan_manager
    budget = manager.plan.memory
    with pytest.raises(ValueError, match=f"keeps to memory={budget!r}: "):
        manager.plans._exceed_bounds(manager.plan, manager.plan.graph.inputs)


def test_auto_that_is_too_little_says_what_was_counted(monkeypatch, tmp_path):
    model, args = deep()
    machine(monkeypatch, tmp_path, available=MIB)
    integrations.compress_model(model, memory="auto")
    for call in (lambda: model(*args), lambda: integrations.plan(model, args, memory="auto")):
        with pytest.raises(ValueError, match="must be at least") as raised:
            call()
        assert "memory='auto' is 0 bytes here: 1.0 MiB that are free on cpu, less " in raised.value.__notes__[0]


def test_ranks_that_plan_together_take_the_least_of_theirs(monkeypatch, tmp_path):
    machine(monkeypatch, tmp_path, available=64 * MIB)
    model, args = deep()
    others = [-1000.0]
    monkeypatch.setattr(rank_0_plan, "largest", lambda value: max(value, *others) if others[0] < 0 else others[0])
    asked = Bounds("auto")
    assert rank_0_plan.with_bytes(asked, model, args, together=True)[0] == Bounds("1000B")
    alone = rank_0_plan.with_bytes(asked, model, args, together=False)[0]
    assert resolve_bytes(alone.memory, 0) == free_memory.free_for(model).nbytes > 1000
    others[0] = math.nan  # a rank on which nothing is known
    with pytest.raises(ValueError, match="if a rank's free memory is unknown"):
        rank_0_plan.with_bytes(asked, model, args, together=True)


def test_auto_on_a_device_of_which_nothing_is_known():
    with pytest.raises(ValueError, match=r"memory must be in bytes here, .*: the memory of meta is unknown"):
        free_memory.measure_room(torch.device("meta"))
    plan = integrations.plan(*deep(), memory=0.9)
    with pytest.raises(ValueError, match="memory must be in bytes or a fraction for a finished plan, got 'auto'"):
        plan.within("auto")


# ---- whether it fits ----


@pytest.mark.usefixtures("captured_once")
def test_fit_understands_the_same_forms(monkeypatch, tmp_path):
    machine(monkeypatch, tmp_path, available=64 * MIB)
    options = {"ways": ["plain"], "tokens": 32, "grow": False, "device": "cpu"}
    for memory, expected in (("auto", 64), ("50%", 50), (0.5, 50), ("24MiB", 24)):
        assert integrations.fit(config_of(), memory=memory, **options).memory == expected * MIB
    found = integrations.fit(config_of(), memory="least", ways=["plain", "recompute"], tokens=64, grow=False)
    assert found.answer == min((way for way in found.ways if way.peak), key=lambda way: way.peak)
    assert 'memory="least"' in found.way("recompute").code
    assert found.answer.peak <= found.available
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="the memory of cuda is unknown"):
        integrations.fit(config_of(), memory="auto", device="cuda")


def test_fit_has_the_room_that_auto_has(monkeypatch, tmp_path):
    """What the training has on the device already is no further taken: weights, gradients, states, inputs."""
    machine(monkeypatch, tmp_path, available=64 * MIB)
    model, inputs = llama(), sample()
    optimizer = torch.optim.AdamW(model.parameters())
    options = {"memory": "auto", "ways": ["recompute"], "grow": False, "optimizer": "adamw", "device": "cpu"}
    for _ in range(2):  # before the first step and after it
        fit = integrations.fit(model, inputs, **options)
        left = fit.available - fit.weights - fit.states - fit.gradients - fit.inputs
        counters = 4 * len(optimizer.state)  # AdamW counts each parameter's steps in 4 bytes, which fit leaves out
        assert left == free_memory.free_for(model).nbytes + counters
        assert 'memory="auto"' in fit.code
        assert fit.memory - fit.available == 5 * MIB
        model(**inputs).loss.backward()
        optimizer.step()


def test_commands_understand_the_same_forms(capsys):

    pytest.importorskip("transformers", reason="transformers is not installed")
    fields = ("num_hidden_layers=2", "hidden_size=64", "num_attention_heads=4", "intermediate_size=128")
    command = ["report", "--hf", "llama", "--batch", "1", "--length", "32", "--set", *fields, "--memory"]
    for memory in ("least", "100%"):
        assert main([*command, memory]) == 0
        assert "activation peak" in capsys.readouterr().out
    assert main([*command, "1"]) != 0
    assert "got 1: write 1.0 for the whole" in capsys.readouterr().err
