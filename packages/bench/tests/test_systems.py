"""``python -m bench systems``: cells, what is taken up, what fails, and who wins."""

import copy
import sys
from dataclasses import replace
from types import ModuleType

import pytest
import torch
import torch_geometric.nn as geometric
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from bench.cli import main, suites
from bench.models.sized import GraphLayers
from bench.models.subject import Subject
from bench.results.record import Record, save
from bench.runner import child
from bench.runner.child import here
from bench.runner.process_memory import ENVIRONMENT
from bench.suites.memory.systems import cell as cells
from bench.suites.memory.systems import subjects
from bench.suites.memory.systems.entries import Cell
from bench.suites.memory.systems.report import front
from bench.suites.memory.systems.subjects import made
from bench.suites.search.dimensions import dimensions
from bench.ways import general
from bench.ways.general import PLAIN, WAYS

from .rendering import MACHINE, panels, printed, words

CPU = torch.device("cpu")


def measured(subject, way, rounds=0, cell=None, **fields):
    return here(cells.measure, cell or Cell(subject, way), rounds=rounds, device="cpu", seed=0, **fields)


def recorded(found, skipped=()):
    return Record("systems", MACHINE, {"device": "cpu", "seed": 0}, list(found), list(skipped))


@pytest.mark.parametrize("way", [PLAIN, "L1", "checkpoint, least", "Q-layers"])
def test_a_cell(way, counted):
    found = measured("mlp", way, 2)
    assert not found.failure
    assert not found.does_not_apply
    assert found.peak_bytes == 1 << 20  # gradients are there before
    assert len(found.seconds) == len(found.plain_seconds) == 2
    # Recomputation changes no bit; what rounds changes some.
    assert (found.error == 0) is (way in (PLAIN, "checkpoint, least"))
    assert found.error < 0.5


def test_what_does_not_apply_is_no_failure(counted):
    elsewhere = [name for name in WAYS if name == "save_on_cpu" or name.startswith("OffloadActivations")]
    for way, said in ({"each block (torch)": "no blocks"} | dict.fromkeys(elsewhere, "on the CPU already")).items():
        found = measured("mlp", way)
        assert said in found.does_not_apply
        assert not found.failure


@pytest.mark.parametrize("way", [name for name in WAYS if name.startswith("OffloadActivations")])
def test_offloading_of_others(way, monkeypatch):
    """By hooks of one object in all steps. The library takes a GPU, so that another class stands for its own."""

    class OffloadActivations(saved_tensors_hooks):
        def __init__(self) -> None:
            self.stored = 0
            super().__init__(self.pack, lambda stored: stored.clone())

        def pack(self, tensor):
            self.stored += 1
            return tensor.detach()

    path = WAYS[way].ready.args[0]
    for name in [path.rpartition(".")[0], path]:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules[path].OffloadActivations = OffloadActivations
    monkeypatch.setattr(general, "_require_gpu", lambda subject: None)
    subject = made("mlp", 0, CPU)
    forward, around = WAYS[way].ready(subject)
    stored = []
    for _ in range(2):
        with around():
            loss = subject.step(forward)
        stored.append(around().stored)
        loss.backward()
    assert 0 < 2 * stored[0] == stored[1]
    assert all(parameter.grad is not None for parameter in subject.model.parameters())


def test_a_way_that_fails_is_recorded(monkeypatch, counted):
    def broken(subject):
        raise ZeroDivisionError("of this way")

    monkeypatch.setattr(cells, "WAYS", {**WAYS, "L1": replace(WAYS["L1"], ready=broken)})
    assert "ZeroDivisionError: of this way" in measured("mlp", "L1").failure


def test_subjects_are_the_same_at_each_call():
    one, other = (made("mlp", 3, CPU) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True))
    assert torch.equal(one.inputs[0], other.inputs[0])
    assert one.model.training


@pytest.mark.parametrize("name", ["gat", "sage"])
def test_layers_of_a_graph_network_compute_what_pyg_s_do(name):
    """Layer by layer, so that nothing between two convolutions is left out where layers are checkpointed."""
    torch.manual_seed(0)
    kinds = {"gat": geometric.GAT, "sage": geometric.GraphSAGE}
    whole = kinds[name](8, 16, 3, 4, dropout=0.5, norm="batch_norm")
    parts = GraphLayers(copy.deepcopy(whole))
    x, edges = torch.randn(40, 8), torch.randint(40, (2, 160))
    found = []
    for model in (whole, parts):
        torch.manual_seed(1)  # of dropout
        output = model(x, edges)
        output.square().sum().backward()
        found.append((output, [p.grad for p in model.parameters() if p.grad is not None]))
    (expected, gradients), (output, others) = found
    assert torch.equal(output, expected)
    assert len(list(parts.layers)) == 3
    assert sorted(g.double().sum().item() for g in gradients) == sorted(g.double().sum().item() for g in others)


@pytest.mark.parametrize(
    "make",
    [*(subjects.SUBJECTS[name] for name in ("gat", "sage")), lambda: dimensions("cpu")["gcn-layers"].make(4)],
    ids=["gat", "sage", "gcn"],
)
def test_blocks_of_graph_networks_hold_all_that_saves(make):
    """Bare convolutions did, and who checkpointed them kept what norms, activations and dropouts save."""
    subject = make()
    inside = {module for block in subject.blocks for module in block.modules()}
    leaves = [module for module in subject.model.modules() if not list(module.children())]
    assert any(isinstance(module, nn.Dropout) for module in leaves)
    assert all(module in inside for module in leaves)


def cell(way, peak, ratio):
    return Cell("mlp", way, "an MLP", peak, 0.1, [ratio], [1.0], commit="0123")


CELLS = [
    cell(PLAIN, 100, 1.0),
    cell("L1", 50, 1.2),
    cell("L2", 60, 1.3),
    cell("checkpoint, least", 40, 1.2),
    Cell("mlp", "save_on_cpu", "an MLP", does_not_apply="the model is on the CPU already"),
    Cell("mlp", "L1.1", "an MLP", failure="it ended"),
]


def test_the_front():
    found = front(recorded(CELLS), "mlp")
    assert [one.way for one in found] == [PLAIN, "checkpoint, least"]
    # A plain step beside a plain step takes its own time; a way whose gradient is noise, or hardly less, wins nothing.
    plain = replace(cell(PLAIN, 100, 1.0), seconds=[1.3])
    noise = replace(cell("randomized linear", 20, 0.5), error=0.6)
    found = front(recorded([plain, noise, cell("L1", 99, 1.1), cell("L2", 60, 1.2)]), "mlp")
    assert [one.way for one in found] == [PLAIN, "L2"]
    # What takes plain's memory is plain training, whatever time it takes.
    found = front(recorded([plain, cell("L1", 99, 0.9), cell("L2", 60, 1.2)]), "mlp")
    assert [one.way for one in found] == [PLAIN, "L2"]


def test_q_layers_have_no_error_where_they_drop_elements_of_their_own(monkeypatch, counted):
    def dropping():
        model = nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.5), nn.ReLU(), nn.Linear(32, 2))
        return Subject(model, (torch.randn(64, 32),), lambda output: output.square().mean(), "with dropout")

    monkeypatch.setattr(subjects, "SUBJECTS", {"dropping": dropping})
    plain, ours = (measured("dropping", way) for way in (PLAIN, "Q-layers"))
    assert not plain.failure, plain.failure
    assert not ours.failure, ours.failure
    assert plain.error == 0
    assert ours.error is None


def test_the_report_says_who_wins_and_what_failed(tmp_path):
    named = [replace(one, what="GraphSAGE, 3 layers of 256, 10,000 nodes, 50,000 edges") for one in CELLS]
    results = recorded(named, ["vit: timm cannot be imported"])
    file, picture = tmp_path / "out.json", tmp_path / "out.png"
    save(results, file)
    assert suites.load(file) == results
    assert main.main(["show", str(file), "--chart", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    text = words(results)
    assert "mlp, L1.1: failed: it ended." in text
    assert "Left out: vit" in text
    assert "mlp, save_on_cpu: does not apply: the model is on the CPU already." in text
    assert "…" not in text  # no number and no name is cut short
    tiny = [replace(one, peak_bytes=one.peak_bytes and one.peak_bytes << 10) for one in CELLS]
    found_text = printed(recorded(tiny))
    assert "L1 50.0 50 1.20" in " ".join(found_text.split())  # KiB


def test_host_times_of_twins_are_one_table_without_memory():
    """Of a step that is the host's, nothing but its time is measured, and a way that failed says so."""

    def timed(subject, way, seconds, **fields):
        return Cell(subject, way, f"{subject}, 8 at 32 x 32", seconds=[seconds], plain_seconds=[1.0], **fields)

    cells_of_twins = [timed("vit-twin", PLAIN, 1.01), timed("vit-twin", "L1", 1.5), timed("llama-twin", PLAIN, 1.0)]
    found = words(recorded([*cells_of_twins, Cell("llama-twin", "L1", failure="it ended")]))
    assert "plain 1.00 1.00" in found
    assert "L1 1.50 failed" in found
    assert "peak" not in found


@pytest.mark.parametrize("name", subjects.TWINS)
def test_twins_train(name):
    subject = made(name, 0, CPU)
    subject.step(subject.model).backward()
    assert all(parameter.grad is not None for parameter in subject.model.parameters())
    assert subject.blocks


def test_a_twin_is_timed_and_nothing_else(monkeypatch):
    asked = []

    def measure_with(process, function, cell, seconds, threads, **options):
        asked.append((process._environment, options["timed"], threads))
        return cell, ""

    monkeypatch.setattr(child.Child, "measure_with", measure_with)
    cells.Processes(1).measure(Cell("vit-twin", "L1"), cells.Request(5, "cpu", 0, timed=True))
    assert asked == [({}, True, 1)]


def test_a_point_of_what_hardly_trains_is_hollow():
    noise = replace(cell("L2", 60, 1.3), error=0.6)
    results = recorded([cell(PLAIN, 100, 1.0), cell("L1", 50, 1.2), noise])
    [panel] = panels(results)
    assert {name for series in panel.series if series.hollow for name in series.names} == {"L2"}


def test_a_run_is_taken_up_and_a_crash_is_recorded(monkeypatch, tmp_path, capsys):
    file = tmp_path / "out.json"
    asked = []

    def measured(processes, blank, request, seconds):
        asked.append((blank.way, request.rounds))
        return replace(blank, failure="it ended") if blank.way == "L2" else cell(blank.way, 10, 1.0)

    monkeypatch.setattr(cells.Processes, "measure", measured)
    command = ["systems", "--model", "mlp", "--way", "L1", "--way", "L2", "--threads", "1", "--json", str(file)]
    assert main.main(command) == 0
    assert asked == [(PLAIN, 7), ("L1", 7), ("L2", 7)]
    asked.clear()
    assert main.main([*command, "--rounds", "1"]) == 0
    assert asked == [("L2", 1)]  # what failed is tried again; the others have as many rounds
    asked.clear()
    assert main.main([*command, "--rounds", "3"]) == 0
    assert asked == [(PLAIN, 3), ("L1", 3), ("L2", 3)]  # they have one
    asked.clear()
    assert main.main([*command[:-1], str(file), "--way", "L1.1", "--no-time"]) == 0
    assert ("L1.1", 0) in asked
    asked.clear()
    assert main.main([*command, "--way", "L1.1", "--rounds", "1"]) == 0
    assert ("L1.1", 1) not in asked  # it has been timed, as the stand-in for it says
    capsys.readouterr()
    assert main.main([*command, "--seed", "1"]) == 1
    assert "holds results of another seed" in capsys.readouterr().err


def test_times_are_of_a_process_without_the_allocators_setting(monkeypatch):
    """Which maps each block: no training does. Both processes share the time that there is."""
    asked, limits = [], []
    now = iter((100.0, 130.0))
    monkeypatch.setattr(cells.time, "monotonic", lambda: next(now))

    def ask(worker, content, seconds):
        options = content["options"]
        asked.append((worker._environment, options["rounds"], options["timed"], options["plan"]))
        limits.append(seconds)
        peak = content["entry"]["peak_bytes"] if options["rounds"] else 5
        return {"entry": {**content["entry"], "peak_bytes": peak}, "more": "a plan"}

    monkeypatch.setattr(child.Worker, "ask", ask)
    timed = cells.Request(3, "cpu", 0)
    with cells.Processes(1) as processes:
        assert processes.measure(Cell("mlp", PLAIN), timed, 50.0).peak_bytes == 5
        assert limits == [50.0, 20.0]
        assert asked == [({}, 3, True, ""), (ENVIRONMENT, 0, False, "a plan")]
        asked.clear()
        processes.measure(Cell("mlp", PLAIN), replace(timed, figures=True))
        assert asked == [(ENVIRONMENT, 3, False, "")]


def test_a_cell_is_timed_before_it_is_measured(counted):
    timed = measured("mlp", "L1", 2, timed=True)
    assert timed.peak_bytes is None
    found = measured("mlp", "L1", cell=timed)
    assert len(found.seconds) == len(found.fresh.seconds) == 2
    assert found.peak_bytes
    assert found.fresh.peak_bytes
