"""``compress_model(model, plan=...)``: a saved plan is followed without planning, or the error says why not."""

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import integrations
from integrations.api.handle import plan_manager, plans_with_stores
from integrations.api.trainers.training import CompressedTraining
from integrations.checkpoint import Plan
from integrations.planner import plans

from . import saved_plan_child
from .forks import Fork
from .nets import assert_same, gradients, normal
from .recompute_levels import deep
from .saved_plan_child import WAYS, compressed_by, digest_of_steps, net

pytestmark = pytest.mark.usefixtures("following_takes_no_time")


@pytest.fixture(scope="module")
def made():
    """An exact plan of ``deep``."""
    model, args = deep()
    integrations.compress_model(model, memory="least")
    gradients(model, *args)
    return integrations.compression(model).plan


# ---- what is followed ----


def test_a_saved_plan_gives_the_same_steps_in_another_process(tmp_path):
    """The plan is saved after a step that accumulated, and so has the plan of such steps."""
    trained = {}
    for way, asked in WAYS.items():
        model = integrations.compress_model(net(), **asked)
        trained[way] = digest_of_steps(model)
        plan = integrations.compression(model).plan
        assert plan.graph.accumulates
        plan.save(tmp_path / way)
    out, errors = Fork(Path(saved_plan_child.__file__), str(tmp_path)).communicate(timeout=120)
    assert not errors
    assert json.loads(out) == trained


@pytest.mark.parametrize("kind", ["path", "text", "plan"])
def test_nothing_is_planned_or_measured(made, tmp_path, monkeypatch, kind, recwarn):
    path = tmp_path / "plan.json"
    made.save(path)
    for module in (plan_manager, plans_with_stores):
        monkeypatch.setattr(module, "planned", None)
    monkeypatch.setattr(plans, "capture", None)
    model, args = deep()
    plain = gradients(model, *args)
    integrations.compress_model(model, plan={"path": path, "text": str(path), "plan": made}[kind])
    handle = integrations.compression(model)
    assert handle.plan == made
    assert (handle.memory, handle.error) == ("least", 0.0)
    assert handle.title == "plan(memory='least', error=0)"
    assert_same(gradients(model, *args), plain)
    assert not recwarn.list


def test_the_level_is_that_of_the_plan(tmp_path):
    model = integrations.compress_model(net(), **WAYS["level"])
    digest_of_steps(model, steps=1)
    integrations.compression(model).plan.save(tmp_path / "level")
    assert integrations.compression(compressed_by(tmp_path / "level", "level")).title == "L1 with seed=3"
    named = integrations.compress_model(net(), "L1", seed=3, plan=tmp_path / "level")
    assert integrations.compression(named).title == "L1 with seed=3"
    for level, got in (({"level": "L1"}, "L1"), ({"level": "L2"}, "L2"), ({"seed": 4}, "L1 with seed=4")):
        with pytest.raises(ValueError, match=f"level must be that of the plan, L1 with seed=3, got {got}; leave level"):
            integrations.compress_model(net(), plan=tmp_path / "level", **level)


def test_a_plan_for_accumulating_steps_is_saved_with_its_own(made, tmp_path):
    """Also if it was pickled in between."""
    for plan in (made, pickle.loads(pickle.dumps(made))):
        other = plan.accumulating
        assert other.graph.accumulates
        other.save(tmp_path / "plan.json")
        loaded = Plan.load(tmp_path / "plan.json")
        assert loaded == made
        assert loaded.accumulating == other


def test_larger_inputs_are_planned_for(made):
    model, _ = deep()
    x = normal(300, 64)
    plain = gradients(model, x)
    integrations.compress_model(model, plan=made)
    assert_same(gradients(model, x), plain)
    assert integrations.compression(model).plan.graph.inputs != made.graph.inputs


# ---- what is refused ----


def other_torch(plan, version):
    return replace(plan, graph=replace(plan.graph, torch_version=version))


def test_what_cannot_be_followed_says_why(made, tmp_path):
    damaged, absent = tmp_path / "damaged.json", tmp_path / "absent.json"
    text = made.to_json()
    damaged.write_text(text[: len(text) // 2])
    old = other_torch(made, "1.13.1+cu117")
    for plan, error, message in (
        (damaged, ValueError, r"damaged\.json must be a file that Plan\.save wrote: .*plan again and save"),
        (absent, FileNotFoundError, "No such file"),
        (tmp_path, OSError, "directory"),
        (3, TypeError, r"plan must be a Plan of .*, or the path of a file that Plan\.save wrote, got int"),
        (old, ValueError, r"version of torch, .*, got one made with 1\.13\.1\+cu117.* compress_model\(model, memory="),
    ):
        model, _ = deep()
        with pytest.raises(error, match=message) as raised:
            integrations.compress_model(model, plan=plan)
        if isinstance(raised.value, OSError):
            assert "must be a file that Plan.save wrote" in raised.value.__notes__[0]
        with pytest.raises(error, match=message):
            integrations.apply(model, plan)
        assert "forward" not in model.__dict__


@pytest.mark.parametrize(
    "model",
    [nn.Sequential(nn.Linear(64, 32), nn.GELU()), deep()[0].to(torch.bfloat16), deep()[0].requires_grad_(False)],
    ids=["modules", "dtype", "frozen"],
)
def test_a_plan_of_another_model_is_refused(made, model):
    with pytest.raises(
        ValueError, match=r"plan must be one of this model: it was made for a Sequential.*requires_grad"
    ):
        integrations.compress_model(model, plan=made)
    assert "forward" not in model.__dict__


def test_a_plan_is_followed_alone(made):
    model, _ = deep()
    for name, value in {
        "memory": 0.5,
        "time": 1.1,
        "error": 0.1,
        "stores": ["exact"],
        "checkpoint": "optimal",
    }.items():
        with pytest.raises(
            ValueError, match=f"plan= cannot be combined with {name}=.* Leave {name} out to use the saved plan"
        ):
            integrations.compress_model(model, plan=made, **{name: value})
    for level in ({"level": "L1"}, {"bits": 4}):
        with pytest.raises(ValueError, match="level must be left out with a plan that was made without a level, got L"):
            integrations.compress_model(model, plan=made, **level)
    with pytest.raises(ValueError, match="plan must be left out of a block"), integrations.compress(model, plan=made):
        pass
    assert "forward" not in model.__dict__
    integrations.compress_model(model, "L0", plan=made)


def test_the_minor_version_of_torch_counts(made):
    """Patches of torch change no operator's name; and older files do not say the version."""
    first, second, *_ = torch.__version__.split(".")
    for version in (f"{first}.{second}.99+cu999", ""):
        model, _ = deep()
        integrations.compress_model(model, plan=other_torch(made, version))
        assert integrations.compression(model).plan is not None
    with pytest.raises(ValueError, match="version of torch"):
        integrations.checkpoint.apply(deep()[0], other_torch(made, f"{first}.{int(second) + 1}.0"))


def test_a_state_of_another_torch_is_planned_for_anew(made):
    """A run resumes with a new torch if it says what to plan for."""
    model, args = deep()
    integrations.compress_model(model, memory="least")
    gradients(model, *args)
    state = integrations.compression(model).state_dict()
    state["recomputing"]["plan"] = other_torch(made, "1.13.1").to_json()
    resumed = integrations.compress_model(deep()[0], memory="least")
    handle = integrations.compression(resumed)
    handle.load_state_dict(state)
    assert handle.plan is None
    gradients(resumed, *args)
    assert handle.plan.graph.torch_version == torch.__version__


# ---- all entries ----


def test_every_entry_takes_a_plan(made, tmp_path):
    path = tmp_path / "plan.json"
    made.save(path)
    training = CompressedTraining(None, None, True, True, {"plan": path})
    path.unlink()  # it is read once, before the training
    model, args = deep()
    plain = gradients(model, *args)
    handle = training.begin(model, None)
    assert handle.plan == made
    assert_same(gradients(model, *args), plain)
    integrations.restore_model(model)
    applied = integrations.compress_model(model, plan=made)
    assert training.begin(applied, None) is integrations.compression(applied).for_user()
    with pytest.raises(ValueError, match=r"plan= cannot be combined with memory=0\.5"):
        CompressedTraining(None, None, True, True, {"plan": made, "memory": 0.5})
