"""``python -m bench systems --compile``: its cells, what is asked of them, and its tables."""

from argparse import Namespace
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch._functorch import config as functorch_config

from bench.cli import main, suites
from bench.errors import BenchError, DoesNotApply
from bench.results.record import Record, save
from bench.runner import child
from bench.runner.child import here
from bench.runner.process_memory import ENVIRONMENT
from bench.suites.memory.systems import command, compiled
from bench.suites.memory.systems import host as tiny_layers
from bench.suites.memory.systems.compiled_report import host_ratios, over_compiled
from bench.suites.memory.systems.entries import Cell, Compiled, Host
from bench.suites.memory.systems.subjects import GPU_SUBJECTS, TWINS
from bench.ways.compiled import (
    COMPILED,
    COMPILED_WAYS,
    EACH_BLOCK,
    EAGER,
    HALF,
    HOST_WAYS,
    QUICK_COMPILED_WAYS,
    same_bytes_name,
    torch_name,
)
from bench.ways.general import PLAIN, TWIN_WAYS

from .rendering import MACHINE, words

MIB = 1 << 20
TORCH, EXACT, ROUNDED = torch_name(0.4), same_bytes_name(0.4, 0.0), same_bytes_name(0.4, 0.1)


@pytest.fixture
def traced(monkeypatch):
    """``torch.compile`` traces, and runs the operators as they are: inductor takes a minute."""
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **options: real(model, **{"backend": "aot_eager", **options}))
    yield
    torch._dynamo.reset()


@pytest.fixture
def few_layers(monkeypatch):
    """Of the tiny layers there are three: each is traced alike, and for a second."""
    monkeypatch.setattr(tiny_layers, "LAYERS", 3)


def recorded(*entries):
    return Record("systems", MACHINE, {"device": "cpu", "seed": 0}, list(entries))


def settled(*arguments, monkeypatch):
    found = []

    def run(options):
        found.append(options)
        return recorded()

    monkeypatch.setattr(main, "BENCHES", {"systems": replace(main.BENCHES["systems"], run=run)})
    assert main.main(["systems", *arguments]) == 0
    return found[0]


def test_our_plans_come_after_the_way_whose_bytes_they_take():
    names = list(COMPILED_WAYS)
    planned = [name for name, way in COMPILED_WAYS.items() if way.bytes_of]
    assert len(planned) == 8
    assert all(names.index(COMPILED_WAYS[name].bytes_of) < names.index(name) for name in planned)
    assert {COMPILED_WAYS[name].error for name in planned} == {0.0, 0.1}


def test_what_is_measured_by_default(monkeypatch):
    found = settled("--compile", monkeypatch=monkeypatch)
    assert found.models == ["resnet50", "vit", "bert", "llama"]
    assert found.ways == list(COMPILED_WAYS)
    assert found.host_ways == list(HOST_WAYS)
    quick = settled("--compile", "--quick", monkeypatch=monkeypatch)
    assert (quick.models, quick.ways) == (["mlp-wide"], list(QUICK_COMPILED_WAYS))
    assert not quick.host_ways
    large = settled("--compile", "--gpu", monkeypatch=monkeypatch)
    assert (large.models, large.ways) == (list(GPU_SUBJECTS), list(COMPILED_WAYS))
    host = settled("--part", "host", monkeypatch=monkeypatch)
    assert (host.models, host.ways, host.threads) == (list(TWINS), list(TWIN_WAYS), 1)
    assert host.host_ways == list(HOST_WAYS)


def test_a_plan_is_measured_with_the_torch_budget_that_it_needs(monkeypatch):
    found = settled("--part", "compiled", "--model", "mlp", "--way", EXACT, monkeypatch=monkeypatch)
    assert found.ways == [COMPILED, TORCH, EXACT]
    assert not found.host_ways


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--compile", "--way", "L1.2"), "is not a way of --compile"),
        (("--way", TORCH), "needs --compile"),
        (("--compile", "--chart", "out.png"), "leave out --chart"),
        (("--part", "host", "--chart", "out.png"), "--no-time and --chart"),
        (("--part", "host", "--threads", "999"), "leave out --threads 999"),
        (("--compile", "--part", "planning"), "leave out --part planning"),
        (("--part", "host", "--no-time"), "leave out --device, --gpu, --no-time and --chart"),
    ],
)
def test_options_that_do_not_go_together(arguments, said, capsys):
    assert main.main(["systems", *arguments]) == 1
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_plan_gets_the_bytes_of_torch_s_measured_peak():
    going = Namespace(found=lambda blank: Compiled("mlp", TORCH, peak_bytes=5) if blank.way == TORCH else None)
    assert command._matched_bytes(going, Compiled("mlp", EXACT)) == 5
    assert command._matched_bytes(going, Compiled("mlp", "L1")) is None
    with pytest.raises(BenchError, match=r"torch's budget 0\.2 has no measured peak"):
        command._matched_bytes(going, Compiled("mlp", same_bytes_name(0.2, 0.0)))
    going = Namespace(found=lambda blank: Compiled("mlp", blank.way, does_not_apply="the model has no blocks"))
    with pytest.raises(DoesNotApply, match=r"each block \(torch\): .*no blocks"):
        command._matched_bytes(going, Compiled("mlp", same_bytes_name("each block", 0.0)))


def test_torch_checkpoints_each_block():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)))
    runs = []
    for block in model:
        block[0].register_forward_hook(lambda *_: runs.append(1))
    way = replace(COMPILED_WAYS[EACH_BLOCK], compiles=False)
    way.ready(model, blocks=list(model)[:2])(torch.ones(2, 4)).sum().backward()
    assert len(runs) == 3 + 2
    with pytest.raises(DoesNotApply, match="no blocks"):
        way.ready(model)


def test_each_cell_is_timed_in_one_process_and_sized_in_another(monkeypatch):
    """With the same folder of inductor's cache, which is another one for the next cell."""
    asked = []

    def ask(worker, content, seconds):
        options = content["options"]
        asked.append((worker._environment, options["rounds"], options["sized"], options["compared"], options["own"]))
        assert 0 < seconds <= compiled.LIMIT
        return {"entry": content["entry"], "more": None}

    monkeypatch.setattr(child.Worker, "ask", ask)
    with compiled.Processes(1) as processes:
        for way in (COMPILED, "L1"):
            processes.measure(Compiled("mlp", way), compiled.Request(3, "cpu", 0), None)
        first, second, third, fourth = asked
        assert first[:4] == third[:4] == ({}, 3, False, True)
        assert second[:4] == fourth[:4] == (ENVIRONMENT, 0, True, False)
        assert first[4] == second[4] != third[4] == fourth[4]
        asked.clear()
        processes.measure(Compiled("mlp", COMPILED), compiled.Request(3, "cuda", 0), 50.0)
        assert [one[:4] for one in asked] == [(ENVIRONMENT, 3, True, True)]


@pytest.mark.parametrize("way", [COMPILED, "L1", TORCH])
def test_a_cell(way, traced, counted):
    found = here(compiled.measure, Compiled("mlp-wide", way), rounds=2, device="cpu", seed=0)
    assert not found.failure, found.failure
    assert found.peak_bytes == MIB
    assert len(found.seconds) == len(found.plain_seconds) == 2
    assert found.compile_seconds > 0
    assert (found.error == 0) is (way != "L1")
    assert found.error < 0.1
    assert found.what == "MLP, 8 layers of 256, 512 rows"


def test_eager_steps_are_beside_them(traced, counted):
    found = here(compiled.measure, Compiled("mlp-wide", EAGER), rounds=1, device="cpu", seed=0)
    assert (found.failure, found.compile_seconds) == ("", None)
    assert found.error < 1e-5


def test_torch_s_budget_is_set_while_the_model_is_compiled_alone():
    before = functorch_config.activation_memory_budget
    with COMPILED_WAYS[TORCH].while_compiling():
        assert functorch_config.activation_memory_budget == 0.4
    assert functorch_config.activation_memory_budget == before


def test_a_budget_out_of_reach_does_not_apply(traced, counted):
    found = here(compiled.measure, Compiled("mlp-wide", EXACT, memory_bytes=10), rounds=1, device="cpu", seed=0)
    assert not found.failure, found.failure
    assert "memory" in found.does_not_apply


@pytest.mark.usefixtures("few_layers")
def test_codecs_of_a_step_are_found_and_called_again():
    calls = tiny_layers.record_codecs("L1", 0, torch.device("cpu"))
    names = [str(target) for target, _, _ in calls]
    assert len([name for name in names if "group_affine_compress" in name]) == 2 * tiny_layers.LAYERS
    assert len([name for name in names if "group_affine_decompress" in name]) == 2 * tiny_layers.LAYERS
    assert not [name for name in names if "region" in name]
    tiny_layers.call_codecs(calls)


@pytest.mark.usefixtures("few_layers", "traced")
def test_the_host_s_time_is_measured_with_and_without_codecs():
    found = here(compiled.measure_host, Host("L1"), rounds=2, device="cpu", seed=0)
    assert not found.failure, found.failure
    assert len(found.seconds) == len(found.codec_seconds) == 2
    assert found.codecs == 4 * tiny_layers.LAYERS
    exact = here(compiled.measure_host, Host(COMPILED), rounds=2, device="cpu", seed=0)
    assert not exact.failure, exact.failure
    assert exact.codecs is None


def cell(way, peak, seconds, **others):
    return Compiled(
        "mlp", way, "an MLP", peak_bytes=peak * MIB, error=0.0, seconds=[seconds], plain_seconds=[0.2], **others
    )


RECORD = recorded(
    Cell("mlp", PLAIN, "an MLP", 100, 0.0, [0.2], [0.2]),
    cell(EAGER, 20, 0.21),
    cell(COMPILED, 10, 0.1, compile_seconds=30.0),
    cell(TORCH, 8, 0.12, compile_seconds=31.0),
    cell(EXACT, 7, 0.11, memory_bytes=8 * MIB, planned_bytes=7 * MIB, compile_seconds=33.0, not_followed="a break."),
    Compiled("mlp", ROUNDED, does_not_apply="memory is too little"),
    Host(COMPILED, [0.002], [0.004]),
    Host("L1", [0.003], [0.004], 96, [0.0009]),
    Host(HALF, [0.0021], [0.004]),
)


def test_times_are_over_those_of_the_compiled_plain_model():
    found = {one.way: over_compiled(RECORD, one) for one in RECORD.of(Compiled)}
    assert found == {EAGER: 2.0, COMPILED: 1.0, TORCH: pytest.approx(1.2), EXACT: pytest.approx(1.1), ROUNDED: None}


def test_the_host_s_time_over_that_of_the_compiled_plain_layers():
    plain, rounded, exact = (host_ratios(RECORD, one) for one in RECORD.of(Host))
    assert plain == (1.0, 1.0)
    assert rounded == (pytest.approx(1.5), pytest.approx(1.05))
    assert exact == (pytest.approx(1.05), pytest.approx(1.05))


def test_recorded_results_load_and_render(tmp_path):
    file = tmp_path / "out.json"
    save(RECORD, file)
    assert suites.load(file) == RECORD
    text = words(RECORD)
    assert f"{COMPILED} 10.0 100 100.0 1.00 0 30.0" in text
    assert f"{EXACT} 8.0 7.0 7.0 70 110.0 1.10 0 33.0 not followed" in text
    assert f"mlp, {EXACT}: a break." in text
    assert f"mlp, {ROUNDED}: does not apply: memory is too little." in text
    assert "L1 3.00 1.50 96 0.90 1.05 ✓" in text
    assert main.main(["show", str(file)]) == 0


def test_entries_are_in_the_order_of_the_ways():
    entries = [*reversed(RECORD.of(Compiled)), *reversed(RECORD.of(Host)), *RECORD.of(Cell)]
    found = recorded().adding(entries, command.KIND.order).entries
    assert [one.way for one in found] == [PLAIN, EAGER, COMPILED, TORCH, EXACT, ROUNDED, COMPILED, "L1", HALF]
