"""Captures print only messages about the user's model."""

import logging
import threading
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

import integrations
from integrations.capture.dispatch.fakes import quiet

from .nets import assert_same, gradients, mlp, normal

X = normal(48, 64)


@pytest.fixture(autouse=True)
def _warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("check_nan", [True, False])
def test_anomaly_mode_tells_nothing_of_a_capture(check_nan):
    """It read elements of fake tensors and printed "Error detected in _LossBackward"; the capture used real ones."""
    plain = mlp()
    expected = gradients(plain, X)
    model = integrations.compress_model(mlp(), memory=1.0, error=0)
    with torch.autograd.set_detect_anomaly(True, check_nan):
        found = gradients(model, X)
        assert (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()) == (True, check_nan)
        rounded = integrations.plan(mlp(), (normal(1024, 64),), memory=0.9, error=0.1)  # measured in steps aside, too
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            integrations.plan(mlp(), (X[:, 1:],))
        assert (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()) == (True, check_nan)
    assert not torch.is_anomaly_enabled()
    assert_same(found, expected)
    assert integrations.compression(model)._plan_manager.plan.graph.note == rounded.graph.note == ""


class Bag(nn.Module):
    """A bag for which torch's fake backward kernel fails."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.bag, self.out = nn.EmbeddingBag(100, 32, mode="sum", sparse=True), nn.Linear(32, 32)
        self.weights = nn.Parameter(torch.rand(64, 4))

    def forward(self, words):
        return self.out(torch.tanh(self.bag(words, per_sample_weights=self.weights))).square().mean()


class Told(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)


@pytest.fixture
def told():
    handler, logger = Told(), logging.getLogger("torch._subclasses.fake_tensor")
    before = list(logger.filters)
    logger.addHandler(handler)
    yield handler.records
    logger.removeHandler(handler)
    assert logger.filters == before


def test_an_operator_that_fails_on_fake_tensors_is_no_error(told):
    """torch logged a traceback of 36 lines for each plan of such a bag."""
    words = torch.randint(100, (64, 4), generator=torch.Generator().manual_seed(0))
    plan = integrations.plan(Bag(), (words,), memory=1.0, error=0)
    assert "captured on real tensors: on fake ones it raised" in plan.graph.note
    assert told == []


def test_what_others_do_with_fake_tensors_is_still_logged(told):
    logger = logging.getLogger("torch._subclasses.fake_tensor")

    def fail(text):
        try:
            raise KeyError(text)
        except KeyError:
            logger.exception(text)

    with quiet():
        fail("ours")
        logger.error("said on purpose")
        other = threading.Thread(target=fail, args=("theirs",))
        other.start()
        other.join()
    fail("later")
    assert [record.getMessage() for record in told] == ["said on purpose", "theirs", "later"]


@pytest.mark.parametrize("first", ["leaves", "results"])
def test_second_order_loops_have_parameters_without_gradients(first):
    """torch warned about ``.grad`` of non-leaf tensors, for each parameter and forward."""

    def step(model):
        weights = dict(model.named_parameters())
        if first == "results":
            weights = {name: weight * 1 for name, weight in weights.items()}
        for _ in range(2):
            loss = functional_call(model, weights, (X,)).square().mean()
            steps = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            changed = [weight - 0.1 * step for weight, step in zip(weights.values(), steps, strict=True)]
            weights = dict(zip(weights, changed, strict=True))
        functional_call(model, weights, (X,)).square().mean().backward()
        return {name: parameter.grad for name, parameter in model.named_parameters()}

    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    expected = step(model)
    for parameter in model.parameters():
        parameter.grad = None
    integrations.compress_model(model, memory=1.0, error=0)
    assert_same(step(model), expected)


class Unrolled(nn.Module):
    """An inner loop in the model's own forward."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.out = nn.Linear(64, 64), nn.Linear(64, 1)

    def forward(self, x):
        weight = self.inner.weight
        for _ in range(2):
            loss = self.out(F.linear(x, weight).tanh()).square().mean()
            weight = weight - 0.1 * torch.autograd.grad(loss, weight, create_graph=True)[0]
        with torch.nn.utils.stateless._reparametrize_module(self.inner, {"weight": weight}):
            return self.out(self.inner(x).tanh()).square().mean()


def test_inner_loops_in_a_forward():
    model, plain = Unrolled(), Unrolled()
    integrations.compress_model(model, memory=1.0, error=0)
    for one in (model, plain):
        one(X).backward()
    assert_same(*({name: parameter.grad for name, parameter in one.named_parameters()} for one in (model, plain)))
