"""The plans of a model in use: forwards that go another way, threads, copies, parameters that are unfrozen."""

import contextlib
import copy
import pickle
import threading
import warnings

import pytest
import torch
from torch import nn

import integrations
from integrations.api.handle import plan_manager
from integrations.checkpoint import apply, capture, plan, plan_of, restore_model
from integrations.planner import plans

from .nets import assert_same, gradients, mlp, normal
from .recompute_nets import net


class Wayward(nn.Module):
    """A forward that small inputs take another way through."""

    def __init__(self):
        super().__init__()
        self.layers = mlp(16, depth=6)

    def forward(self, x):
        return self.layers(x.sin() if len(x) < 32 else x)


@pytest.fixture
def captures(monkeypatch):
    """The rows of inputs that plans in use were captured with."""
    found = []

    def noted(model, args, kwargs, **options):
        found.append(len(args[0]))
        return capture(model, args, kwargs, **options)

    monkeypatch.setattr(plans, "capture", noted)
    return found


def test_smaller_inputs_that_go_astray_say_nothing_about_larger_ones(captures):
    model = Wayward().train()
    twin = copy.deepcopy(model)
    made = plan(model, normal(64, 16))
    apply(model, made)

    def step(rows):
        assert_same(gradients(twin, normal(rows, 16)), gradients(model, normal(rows, 16)))

    with pytest.warns(UserWarning, match="The next forward with such inputs gets a new plan"):
        step(8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(64)
        assert plan_of(model) is made
        assert captures == []
        step(8)
        assert captures == [8]
        assert plan_of(model).graph.inputs.shapes == ((8, 16),)
        step(6)  # follows the plan of 8, which goes its way
        step(64)
    assert plan_of(model) is made
    assert captures == [8]


def test_inputs_that_never_come_again_are_not_remembered_without_end(captures):
    model = Wayward().train()
    apply(model, plan(model, normal(64, 16)))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for rows in range(2, 32):
            model(normal(rows, 16)).sum().backward()
    assert len(told) == 9  # eight that may have a capture, and once for all others
    assert captures == []


def test_a_budget_that_one_input_cannot_keep_is_asked_for_with_the_next():
    model = mlp(width=16, depth=12).train()
    made = plan(model, normal(1024, 16))
    apply(model, made.within(made.peak))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"no plan of Sequential for inputs 4096x16 keeps to"):
            model(normal(4096, 16))
    with torch.autocast("cpu", torch.bfloat16):
        model(normal(16, 16)).sum().backward()
    assert plan_of(model).budget == made.peak


def in_two_threads(function):
    """What two threads return that call a function at once."""
    found, threads = [], []
    for _ in range(2):
        threads.append(threading.Thread(target=lambda: found.append(function())))
        threads[-1].start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("kind", ["applied", "compressed"])
def test_of_two_threads_with_the_same_inputs_one_plans(kind, monkeypatch):
    where, name = (plans, "capture") if kind == "applied" else (plan_manager, "planned")
    original, calls, both = getattr(where, name), [], threading.Barrier(2)

    def noted(*args, **options):
        calls.append(args)
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(timeout=0.5)  # for the other thread, if it comes here, too
        return original(*args, **options)

    monkeypatch.setattr(where, name, noted)
    model, x = mlp(16, depth=8).train(), normal(64, 16)
    if kind == "applied":
        apply(model, plan(model, normal(8, 16)))
    else:
        integrations.compress_model(model, "L1", checkpoint="optimal", min_bytes=0)
    outputs = in_two_threads(lambda: model(x))
    assert len(calls) == 1
    assert torch.equal(*outputs)
    assert plan_of(model).graph.inputs.shapes == ((64, 16),)


@pytest.mark.parametrize("kind", ["applied", "compressed"])
def test_copies_share_plans_which_nobody_changes(kind):
    model, x = mlp(16, depth=8).train(), normal(64, 16)
    if kind == "applied":
        apply(model, plan(model, x))
    else:
        integrations.compress_model(model, "L1", checkpoint="optimal", min_bytes=0)
    model(x).sum().backward()
    twin = copy.deepcopy(model)
    assert plan_of(twin) is plan_of(model)
    assert pickle.loads(pickle.dumps(model)) is not model
    twin(normal(128, 16)).sum().backward()  # whose plan is the copy's alone
    assert plan_of(twin) is not plan_of(model)
    model(x).sum().backward()
    assert plan_of(model).graph.inputs.shapes == ((64, 16),)
    assert copy.deepcopy(plan_of(model)).graph is plan_of(model).graph


def test_the_plan_of_a_compressed_model():
    model, x = mlp(16, depth=8).train(), normal(256, 16)
    integrations.compress_model(model, "L1", checkpoint="optimal", min_bytes=0)
    with pytest.raises(ValueError, match="has no plan yet: its first training forward makes one"):
        plan_of(model)
    with pytest.raises(ValueError, match=r"it is compressed: call integrations.restore_model\(model\) instead"):
        restore_model(model)
    model(x).sum().backward()
    found = plan_of(torch.compile(model))
    assert found is integrations.compression(model)._plan_manager.plan
    assert found.compressed
    assert "stores tensors as the level says" in str(found)
    # It may be given to another model, and is one that was made for a level there, too.
    other = integrations.compress_model(mlp(16, depth=8).train(), "L1", checkpoint=found, min_bytes=0)
    other(x).sum().backward()
    assert_same(gradients(model, x), gradients(other, x))  # both in their second step, by which noise goes
    assert plan_of(other) is found
    integrations.restore_model(model)
    integrations.compress_model(model, "L1")
    with pytest.raises(ValueError, match=r"has no plan; call .*compress_model\(model, checkpoint='optimal'\)"):
        plan_of(model)


@pytest.mark.parametrize("name", ["resnet", "transformer"])
@pytest.mark.parametrize("frozen", [True, False])
def test_parameters_that_are_unfrozen_or_frozen_after_planning_have_the_models_own_gradients(name, frozen):
    """What is then saved besides is kept."""
    model, args, kwargs = net(name)
    parameters = list(model.parameters())
    for parameter in parameters[: len(parameters) // 2]:
        parameter.requires_grad_(not frozen)
    twin = copy.deepcopy(model)
    apply(model, plan(model, args, kwargs=kwargs))
    assert plan_of(model).segments
    for one in (model, twin):
        for parameter in list(one.parameters())[: len(parameters) // 2]:
            parameter.requires_grad_(frozen)
    expected = gradients(twin, *args, **kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(expected, gradients(model, *args, **kwargs))
