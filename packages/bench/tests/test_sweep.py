import importlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import integrations
from bench.cli import main as cli
from bench.cli import records
from bench.models.subject import Case
from bench.results.machine import Machine
from bench.results.record import Record
from bench.sweep import measure, page, run
from bench.sweep.results import ERROR, Swept
from bench.sweep.subjects import ECOSYSTEMS, INTEGRATIONS, PYG, QUICK, SUBJECTS, TIMM, TRANSFORMERS, WIDE, Subject

# Of each ecosystem, one that takes a second.
SMALL = {TIMM: "mobilenetv3_small_050", TRANSFORMERS: "distilbert", PYG: "GATConv"}


def subject_of(ecosystem):
    pytest.importorskip(ECOSYSTEMS[ecosystem])
    [found] = [one for one in SUBJECTS if (one.ecosystem, one.name) == (ecosystem, SMALL[ecosystem])]
    return found


def words(text):
    return " ".join(text.split())


def with_changes(monkeypatch, change):
    """PyG's ``compress_model``, and what ``change`` does to the model after it."""
    pyg = importlib.import_module(INTEGRATIONS[PYG])
    plain = pyg.compress_model

    def changed(model, *args, **options):
        plain(model, *args, **options)
        change(model)

    monkeypatch.setattr(pyg, "compress_model", changed)


def test_as_many_as_were_asked_for():
    counts = {ecosystem: sum(one.ecosystem == ecosystem for one in SUBJECTS) for ecosystem in ECOSYSTEMS}
    assert counts[TIMM] >= 40
    assert counts[TRANSFORMERS] >= 25
    assert counts[PYG] >= 15
    names = {(one.ecosystem, one.name) for one in SUBJECTS}
    assert len(names) == len(SUBJECTS)
    assert {(ecosystem, name) for ecosystem, quick in QUICK.items() for name in quick} <= names


@pytest.mark.parametrize("ecosystem", ECOSYSTEMS)
def test_one_of_each_ecosystem_passes(ecosystem):
    found = measure.measure(subject_of(ecosystem), "L1", steps=1, seed=0)
    assert found.shortcomings == []
    assert found.passed
    assert 0 < found.error <= ERROR
    assert 0 < found.stored_bytes < found.original_bytes
    assert found.rows > 0
    assert found.repeated
    assert not found.why


# what must not pass


def test_a_wrong_gradient_fails(monkeypatch):
    """Half as long again as it should be, in one of six parameters."""

    def scale(model):
        model.before.weight.register_hook(lambda gradient: 1.5 * gradient)

    with_changes(monkeypatch, scale)
    found = measure.measure(subject_of(PYG), "L1", steps=1, seed=0)
    assert not found.accurate
    assert not found.passed
    assert found.where == "before.weight"
    assert found.share > 0.5
    assert any("before.weight" in shortcoming for shortcoming in found.shortcomings)


def test_another_loss_and_a_model_that_is_not_restored_fail(monkeypatch):
    with_changes(monkeypatch, lambda model: model.register_forward_hook(lambda *given: given[2] * 1.001))
    found = measure.measure(subject_of(PYG), "L1", steps=1, seed=0)
    assert found.shortcomings == [
        "the loss differs from the plain one",
        "restore_model did not bring the plain model back",
    ]


def test_gradients_that_differ_from_step_to_step_are_restored_to_within_that():
    def step(value):
        return measure.Step(torch.zeros(()), [torch.tensor([1.0, value]), None], 0.0)

    plain = step(1.0)
    assert measure.is_plain(step(1.0 + 5e-6), plain, 1e-6, 0.1)
    assert not measure.is_plain(step(1.001), plain, 1e-6, 0.1)
    assert not measure.is_plain(step(1.1), plain, 0.2, 0.1)  # no nearer than a compressed one
    assert measure.is_plain(step(1.0), plain, 0.0, 0.1)
    assert not measure.is_plain(step(1.0 + 1e-6), plain, 0.0, 0.1)


def test_parameters_that_stay_fail(monkeypatch):
    monkeypatch.setattr(torch.optim.SGD, "step", lambda optimizer: None)
    found = measure.measure(subject_of(PYG), "L1", steps=1, seed=0)
    assert found.shortcomings == ["the optimizer's step left parameters as they were, or not finite"]


def test_what_keeps_an_entry_from_passing():
    good = Swept(PYG, "", "", original_bytes=9, stored_bytes=3, rows=1, errors=[0.1, 0.1])
    good = replace(good, same_loss=True, stepped=True, restored=True)
    assert good.passed
    assert good.error == pytest.approx(0.1)
    for wrong in (
        {"errors": [0.0, 0.3]},  # 0.21 in the root of the mean square
        {"errors": [float("nan")]},
        {"errors": []},
        {"errors": [0.2], "eased_errors": [0.16]},
        {"stored_bytes": 9},
        {"rows": 0},
        {"failure": "RuntimeError: no"},
    ):
        assert not replace(good, **wrong).passed, wrong
    assert replace(good, errors=[0.2], eased_errors=[0.1]).passed
    assert replace(good, stored_bytes=9, why="9 B: too small").passed


# what nothing is stored of in fewer bytes, and what needs more bits


def tiny(features):
    """Layers between which is a tensor of 8 times as many elements."""
    model = torch.nn.Sequential(torch.nn.Linear(4, features), torch.nn.ReLU(), torch.nn.Linear(features, 2))
    x = torch.randn(8, 4)
    return Case(model, lambda: model(x).square().mean(), "8")


def made(monkeypatch, make):
    """A subject of no ecosystem, whose ``compress_model`` is that of any module."""

    def compress_model(subject, model, level, **options):
        integrations.compress_model(model, level, **options)

    monkeypatch.setattr(measure, "compress_model", compress_model)
    return Subject(PYG, "family", "tiny", make)


def test_the_report_says_why_nothing_is_smaller(monkeypatch):
    found = measure.measure(made(monkeypatch, lambda: tiny(8)), "L1", steps=1, seed=0)
    assert not found.smaller
    assert "smaller than min_bytes=1024" in found.why
    assert found.passed
    results = Record(
        "sweep", Machine.here(torch.device("cpu"), 1, ["torch"]), {"level": "L1", "steps": 1, "seed": 0}, [found]
    )
    assert "No fewer bytes are stored of tiny: 256 B: smaller than min_bytes=1024" in words(page.page(results))


def test_more_bits_where_they_are_needed(monkeypatch):
    """One bit is not enough for anything, and two hardly."""
    subject = made(monkeypatch, lambda: tiny(256))
    found = measure.measure(subject, "L1.2", steps=2, seed=0)
    assert not found.accurate
    assert len(found.errors) == len(found.eased_errors) == 2
    assert found.eased_error < found.error
    assert found.stored_bytes < found.eased_bytes < found.original_bytes


# a run


def sweep(*arguments):
    return cli.main(["sweep", "--ecosystem", PYG, "--steps", "1", *map(str, arguments)])


def test_a_run_is_taken_up_and_shown(tmp_path, capsys):
    file, markdown = tmp_path / "sweep.json", tmp_path / "sweep.md"
    assert sweep("--subject", "SGConv", "--json", file) == 0
    [first] = records.load(file).of(Swept)
    content = json.loads(file.read_text())
    content["entries"][0]["seconds"] = 12345.0  # would be another if it were measured again
    file.write_text(json.dumps(content))
    assert sweep("--subject", "GCNConv", "--subject", "SGConv", "--json", file, "--page", markdown) == 0
    results = records.load(file)
    assert [entry.name for entry in results.of(Swept)] == ["GCNConv", "SGConv"]  # in their own order
    assert results.of(Swept)[1] == replace(first, seconds=12345.0)
    printed = words(capsys.readouterr().out)
    assert "PyG: 2 of 2 passed at L1" in printed
    text = markdown.read_text()
    assert text == page.page(results)
    assert f"| {results.of(Swept)[0].error:.3f} |" in text
    assert cli.main(["show", str(file)]) == 0
    assert "PyG: 2 of 2 passed at L1" in words(capsys.readouterr().out)
    assert sweep("--subject", "SGConv", "--json", file, "--level", "L1.1") == 1
    assert "holds results of another level" in capsys.readouterr().err


def test_what_fails_is_recorded_and_the_rest_goes_on(monkeypatch, tmp_path):
    def fails(subject, *given):
        if subject.name == "GCNConv":
            raise RuntimeError("a shape\nis wrong")
        return Swept(subject.ecosystem, subject.family, subject.name, plain_seconds=1.0)

    monkeypatch.setattr(run, "measure", fails)
    file = tmp_path / "sweep.json"
    assert sweep("--subject", "GCNConv", "--subject", "SGConv", "--json", file) == 0
    failed, other = records.load(file).of(Swept)
    assert failed.failure == "RuntimeError: a shape is wrong"
    assert not failed.passed
    assert not other.failure
    text = words(page.page(records.load(file)))
    assert "Did not pass: GCNConv, RuntimeError: a shape is wrong." in text
    monkeypatch.setattr(run, "measure", lambda one, *given: Swept(PYG, one.family, one.name, plain_seconds=1.0))
    assert sweep("--subject", "GCNConv", "--subject", "SGConv", "--json", file) == 0  # what failed is tried again
    assert not any(entry.failure for entry in records.load(file).of(Swept))


def test_a_library_that_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(run, "ECOSYSTEMS", {**ECOSYSTEMS, TIMM: "no_such_library"})
    subjects = ("--subject", "resnet18", "--subject", "SGConv")
    assert cli.main(["sweep", "--steps", "1", *subjects]) == 0
    printed = words(capsys.readouterr().out)
    assert "Left out: timm: no_such_library cannot be imported" in printed
    assert "PyG: 1 of 1 passed at L1" in printed
    assert cli.main(["sweep", "--subject", "resnet18"]) == 1
    assert "nothing can be swept: no_such_library" in capsys.readouterr().err
    assert sweep("--subject", "resnet18") == 1
    assert "PyG has none of resnet18" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "written"),
    [("sweep-cpu.json", "sweep.md"), ("sweep-lean-cpu.json", "sweep_lean.md"), ("sweep-cuda.json", "sweep_cuda.md")],
)
def test_the_documentation_is_of_the_recorded_results(file, written):
    root = Path(__file__).parents[3]
    results = records.load(root / "packages" / "bench" / "results" / file)
    assert (root / "docs" / written).read_text() == page.page(results)
    measured = {(entry.ecosystem, entry.name) for entry in results.of(Swept)}
    assert measured == {(one.ecosystem, one.name) for one in SUBJECTS}


@pytest.mark.parametrize(
    ("file", "written"),
    [("sweep-widths-cpu.json", "sweep_widths.md"), ("sweep-widths-lean-cpu.json", "sweep_widths_lean.md")],
)
def test_the_documentation_of_widths_is_of_the_recorded_results(file, written):
    root = Path(__file__).parents[3]
    results = records.load(root / "packages" / "bench" / "results" / file)
    assert (root / "docs" / written).read_text() == page.page(results)
    assert {entry.name for entry in results.of(Swept)} == {one.name for one in WIDE}
    assert all(entry.passed and entry.accurate for entry in results.of(Swept))
