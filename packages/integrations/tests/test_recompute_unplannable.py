"""A forward that no plan can be made of runs plainly; planning it by hand says why."""

import copy
import warnings

import pytest
import torch
from torch import nn

import integrations
from integrations import checkpoint
from integrations._measuring import bounded
from integrations._planning import plans
from integrations._planning.front import planned

from .nets import assert_same, gradients, mlp, normal

X = normal(48, 64)
LARGER = normal(96, 64)

WAYS = {
    "apply": lambda model: checkpoint.apply(model, checkpoint.plan(model, (X,))),
    "L1": lambda model: integrations.compress_model(model, checkpoint="optimal"),
}
every_way = pytest.mark.parametrize("way", WAYS)


def frozen(model):
    return model.requires_grad_(False)


@every_way
def test_a_model_of_which_nothing_is_trained_runs_with_any_inputs(way):
    plain, model = mlp(), WAYS[way](mlp())
    model(X).sum().backward()
    frozen(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".* at L1: nothing is stored in fewer bytes: autograd saved nothing")
        for x in (LARGER, X):
            assert torch.equal(model(x), plain(x))
    with pytest.raises(ValueError, match="requires a gradient"):
        checkpoint.plan(frozen(mlp()), (X,))


def test_compression_of_a_model_of_which_nothing_is_trained_yet():
    model = integrations.compress_model(frozen(mlp()), checkpoint="optimal")
    with pytest.warns(UserWarning, match="autograd saved nothing"):
        assert torch.equal(model(X), mlp()(X))
    with pytest.raises(ValueError, match="has no plan yet"):
        checkpoint.plan_of(model)
    model.requires_grad_(True)
    model(X).sum().backward()  # plans now
    assert checkpoint.plan_of(model).plain_peak > 0


@every_way
def test_a_capture_that_fails_warns_once_and_the_forward_runs(way, monkeypatch):
    plain = mlp()
    model = WAYS[way](copy.deepcopy(plain))
    model(X).sum().backward()
    captures = []

    def capture(*args, **options):
        captures.append(args)
        raise RuntimeError("operators that no capture knows")

    monkeypatch.setattr(plans, "capture", capture)
    monkeypatch.setattr("integrations._planning.front.capture", capture)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = gradients(model, LARGER)
        gradients(model, LARGER)
        gradients(model, normal(128, 64))
    [message] = [str(one.message) for one in seen if "plan" in str(one.message)]
    assert message.startswith("no plan can be made of Sequential for inputs 96x64")
    assert message.endswith("RuntimeError: operators that no capture knows")
    assert len(captures) == 2  # one for each of the two
    if way == "apply":
        assert_same(found, gradients(plain, LARGER))


def test_it_is_not_tried_for_ever(monkeypatch):
    model = WAYS["apply"](mlp())
    captures = []

    def capture(*args, **options):
        captures.append(args)
        raise RuntimeError

    monkeypatch.setattr(plans, "capture", capture)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for rows in range(60, 80):
            model(normal(rows, 64)).sum().backward()
    assert len(captures) == 8


def test_shapes_without_a_gradient_do_not_stop_others(monkeypatch):
    """A model in training mode that is only looked at, and then is a part of something that is trained."""
    model = integrations.compress_model(frozen(mlp()), checkpoint="optimal")
    captures = []

    def noted(*args, **options):
        captures.append(args)
        return planned(*args, **options)

    monkeypatch.setattr(bounded, "planned", noted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for rows in range(60, 80):
            model(normal(rows, 64))
    assert len(captures) == 8
    model(normal(48, 64).requires_grad_()).sum().backward()
    assert checkpoint.plan_of(model).plain_peak > 0


class Failing(nn.Linear):
    """Raises in its first forwards, captures included."""

    error: BaseException | None = None

    def forward(self, x):
        if self.error is not None:
            raise self.error
        return super().forward(x)


@every_way
def test_a_failure_that_passes_is_forgotten(way):
    model = WAYS[way](nn.Sequential(Failing(64, 256), nn.GELU(), nn.Linear(256, 64)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows in range(96, 108):  # more shapes than are tried where no plan can be made
            model[0].error = RuntimeError("a file that is not there yet")
            with pytest.raises(RuntimeError, match="not there yet"):
                model(normal(rows, 64))
        model[0].error = None
        model(LARGER).sum().backward()
    assert checkpoint.plan_of(model).graph.inputs.shapes == ((96, 64),)


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_a_capture_without_memory_is_repeated(error, monkeypatch):
    model = WAYS["apply"](mlp())
    failing = [error("none left")] * 3

    def capture(*args, **options):
        if failing:
            raise failing.pop()
        return captured(*args, **options)

    captured = plans.capture
    monkeypatch.setattr(plans, "capture", capture)
    with pytest.warns(UserWarning, match="no plan can be made") as seen:
        [model(LARGER).sum().backward() for _ in range(4)]
    assert len(seen) == 1
    assert checkpoint.plan_of(model).graph.inputs.shapes == ((96, 64),)


class Picky(nn.Linear):
    def forward(self, x):
        if len(x) == 96:
            raise KeyError("ninety-six")
        return super().forward(x)


@every_way
@pytest.mark.filterwarnings("ignore:no plan can be made")
def test_what_the_model_raises_comes_through(way):
    model = WAYS[way](nn.Sequential(Picky(64, 64), nn.ReLU()))
    model(X).sum().backward()
    for _ in range(2):
        with pytest.raises(KeyError, match="ninety-six"):
            model(LARGER)
    model(X).sum().backward()


def test_a_budget_that_cannot_be_met_is_still_refused():
    model = integrations.compress_model(mlp(), checkpoint=1)
    with pytest.raises(ValueError, match="checkpoint must be a budget of at least"):
        model(X)
