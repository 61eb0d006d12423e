"""One compressed training step of models and layers of timm, transformers and PyG, each beside its plain one.

Here one of each library; ``nox -s bench_sweep -- --record FILE`` measures all.
"""

import gc
import importlib
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

import integrations

from .libraries import library_or_skip
from .sweep import measure
from .sweep.case import Case
from .sweep.results import ERROR, Swept, root_mean_square
from .sweep.subjects import ECOSYSTEMS, INTEGRATIONS, PYG, SUBJECTS, TIMM, TRANSFORMERS, WIDE, Subject

# Of each ecosystem, one that takes a second.
SMALL = {TIMM: "mobilenetv3_small_050", TRANSFORMERS: "distilbert", PYG: "GATConv"}
STEPS = 3  # of a subject, in a record
WIDE_STEPS = 1


def subject_of(ecosystem):
    library_or_skip(ECOSYSTEMS[ecosystem])
    [found] = [one for one in SUBJECTS if (one.ecosystem, one.name) == (ecosystem, SMALL[ecosystem])]
    return found


@contextmanager
def deterministic(on):
    """Torch's deterministic algorithms where there are some, so that two steps can be compared bit for bit: by default
    many kernels of CUDA add up a gradient in whatever order their threads come."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(on or before[0], warn_only=on or before[1])
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@pytest.fixture
def sweep(measured, asked):
    """``sweep(subjects, steps)``: what was found of each, as the options ask for it."""
    settings = {"level": asked("level") or "L1", "seed": 0, "device": asked("device") or "cpu"}

    def found(subjects, steps):
        def one(subject):
            try:
                with deterministic(settings["device"] == "cuda"):
                    return measure.measure(subject, settings["level"], steps, 0, settings["device"])
            finally:
                gc.collect()  # a model's modules and hooks refer to each other

        return measured("sweep", {**settings, "steps": steps}, subjects, one)

    return found


def failing(found):
    return {one.name: one.shortcomings for one in found if one.shortcomings}


def test_as_many_as_were_asked_for():
    counts = {ecosystem: sum(one.ecosystem == ecosystem for one in SUBJECTS) for ecosystem in ECOSYSTEMS}
    assert counts[TIMM] >= 40
    assert counts[TRANSFORMERS] >= 25
    assert counts[PYG] >= 15
    names = {(one.ecosystem, one.name) for one in SUBJECTS}
    assert len(names) == len(SUBJECTS)


@pytest.mark.filterwarnings("ignore")  # what compression warns of, the report says as well
@pytest.mark.parametrize("ecosystem", ECOSYSTEMS)
def test_a_compressed_step_is_as_good_as_promised(ecosystem, sweep, asked):
    library_or_skip(ECOSYSTEMS[ecosystem])
    of_it = [one for one in SUBJECTS if one.ecosystem == ecosystem]
    chosen = [one for one in of_it if one.name in (asked("subject") or (one.name,))]
    if not chosen:
        pytest.skip(f"{ecosystem} has none of {', '.join(asked('subject'))}")
    if asked("record") or asked("subject"):
        assert failing(sweep(chosen, STEPS)) == {}
        return
    [found] = sweep([subject_of(ecosystem)], 1)
    assert found.shortcomings == []
    assert 0 < found.error <= ERROR
    assert 0 < found.stored_bytes < found.original_bytes
    assert found.repeated
    assert not found.why


@pytest.mark.filterwarnings("ignore")
def test_each_width_in_a_record(sweep, asked):
    """Llama, ViT and BERT from hidden size 64 to 8192; ``test_sweep_widths.py`` has some of them in each run."""
    if asked("record") is None:
        pytest.skip("takes 9 GiB and --record FILE")
    library_or_skip("transformers")
    found = sweep([one for one in WIDE if one.name in (asked("subject") or (one.name,))], WIDE_STEPS)
    assert failing(found) == {}


# what must not pass


def with_changes(monkeypatch, change):
    """PyG's ``compress_model``, and what ``change`` does to the model after it."""
    pyg = importlib.import_module(INTEGRATIONS[PYG])
    plain = pyg.compress_model

    def changed(model, *args, **options):
        plain(model, *args, **options)
        change(model)

    monkeypatch.setattr(pyg, "compress_model", changed)


def test_a_wrong_gradient_fails(monkeypatch):
    """Half as long again as it should be, in one of six parameters."""

    def scale(model):
        model.before.weight.register_hook(lambda gradient: 1.5 * gradient)

    with_changes(monkeypatch, scale)
    found = measure.measure(subject_of(PYG), "L1", steps=1, seed=0)
    assert not found.accurate
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
    assert good.shortcomings == []
    assert good.error == pytest.approx(0.1)
    for wrong in (
        {"errors": [0.0, 0.3]},  # 0.21 in the root of the mean square
        {"errors": [float("nan")]},
        {"errors": []},
        {"errors": [0.2], "eased_errors": [0.16]},
        {"stored_bytes": 9},
        {"rows": 0},
    ):
        assert replace(good, **wrong).shortcomings, wrong
    assert replace(good, errors=[0.2], eased_errors=[0.1]).shortcomings == []
    assert replace(good, stored_bytes=9, why="9 B: too small").shortcomings == []


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
    assert found.stored_bytes == found.original_bytes
    assert "256 B: smaller than min_bytes=1024" in found.why
    assert found.shortcomings == []


def test_more_bits_where_they_are_needed(monkeypatch):
    """One bit is not enough for anything, and two hardly."""
    subject = made(monkeypatch, lambda: tiny(256))
    found = measure.measure(subject, "L1.2", steps=2, seed=0)
    assert not found.accurate
    assert len(found.errors) == len(found.eased_errors) == 2
    assert root_mean_square(found.eased_errors) < found.error
    assert found.stored_bytes < found.eased_bytes < found.original_bytes
