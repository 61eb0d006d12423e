"""The gradient's error, measured and predicted."""

import copy
import math

import pytest
import torch
from torch import nn

import integrations

from .nets import make_closure, mlp, normal, whole_gradient

X = normal(48, 64)


def model_with_dropout(level="L2", **options):
    torch.manual_seed(0)
    return integrations.compress_model(nn.Sequential(mlp(), nn.Dropout(0.2), nn.Linear(64, 8)), level, **options)


@pytest.mark.parametrize("level", ["L1", "L1.2", "L2"])
def test_the_error_is_that_of_the_next_step(level):
    """The same noise, the same dropout: the same number, up to the order of sums in float32."""
    model = model_with_dropout(level)
    plain = copy.deepcopy(model)
    integrations.restore_model(plain)
    torch.manual_seed(3)
    found = integrations.compression(model).gradient_error(make_closure(model))
    assert found.measured
    exact = whole_gradient(plain)
    expected = (whole_gradient(model) - exact).norm() / exact.norm()
    assert found.relative == pytest.approx(expected.item(), rel=1e-4)


def test_fewer_bits_err_more():
    errors = [
        integrations.compression(model := model_with_dropout("L1", bits=bits))
        .gradient_error(make_closure(model))
        .relative
        for bits in (8, 4, 2)
    ]
    assert errors == sorted(errors)
    assert 0 < errors[0] < errors[2] / 10  # steps are 85 times as large


def test_measuring_leaves_training_as_it_was():
    model = model_with_dropout()
    handle = integrations.compression(model)
    make_closure(model)()
    before = [(parameter.grad, parameter.grad.clone()) for parameter in model.parameters()], torch.get_rng_state()
    handle.gradient_error(make_closure(model))
    assert handle.step == 1
    assert torch.equal(before[1], torch.get_rng_state())
    for parameter, (same, value) in zip(model.parameters(), before[0], strict=True):
        assert parameter.grad is same
        assert torch.equal(same, value)


def test_without_a_closure_it_is_the_plans_prediction():
    model = model_with_dropout()
    handle = integrations.compression(model)
    with pytest.raises(ValueError, match="closure must be given as long as no plan predicts the error"):
        handle.gradient_error()
    plan = handle.adapt(make_closure(model))
    found = handle.gradient_error()
    assert (found.relative, found.measured) == (plan.relative_error, False)
    assert "predicted by the plan, not measured" in str(found)


def test_nothing_is_predicted_where_no_parameter_gets_a_gradient():
    """As in a loop that optimises the input: it has a plan, with the sensitivities that are usual."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).requires_grad_(False)
    handle = integrations.compression(integrations.compress_model(model, "L2"))
    x = X.clone().requires_grad_()
    for step in range(4):
        if step == 2:  # and checks before the next
            handle.monitor(every=1, bound=1e-9)
        model(x).square().mean().backward()
    assert handle.plan is not None
    assert math.isnan(handle.plan.relative_error)
    unknown = "the gradient's error is not known, since no parameter got a gradient in that step"
    assert f"step 1: {unknown}. handle.plan" in " ".join(str(handle.report()).split())
    assert unknown[1:] in " ".join(str(handle.plan).split())
    found = handle.gradient_error()
    assert "not known, since no parameter got a gradient" in str(found)
    assert handle.last_error is None


def test_a_closure_without_a_forward_says_so():
    model = model_with_dropout()
    with pytest.raises(RuntimeError, match="must run a forward of the compressed model"):
        integrations.compression(model).gradient_error(lambda: None)
    closure = make_closure(model)
    integrations.compression(model).gradient_error(closure)  # and the handle is not left paused
