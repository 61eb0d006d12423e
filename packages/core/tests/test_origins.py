"""Second derivatives of piecewise linear functions are zeros, or ``None``, for the same inputs as in torch."""

import pytest
import torch
import torch.nn.functional as F

import actcore

from .samples import normal

LEAST = 2.0**-149
CASES = {
    "relu": (actcore.relu, F.relu),
    "leaky_relu": (
        lambda x: actcore.stepwise(x, "leaky_relu", (LEAST,), (0.01, 1.0), parameters=(0.01,)),
        F.leaky_relu,
    ),
    "max_pool1d": (lambda x: actcore.max_pool1d(x, 2), lambda x: F.max_pool1d(x, 2)),
    "max_pool2d": (lambda x: actcore.max_pool2d(x, 2), lambda x: F.max_pool2d(x, 2)),
    "max_pool3d": (lambda x: actcore.max_pool3d(x[None], 2), lambda x: F.max_pool3d(x[None], 2)),
}


def second_derivatives(function, cotangent):
    x, weight, bias = normal(4 * 4 * 8).view(4, 4, 8), normal(8, seed=1), normal(8, seed=2)
    leaves = [x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()]
    output = function(x * weight + bias)
    [slope] = torch.autograd.grad(cotangent(output), x, create_graph=True)
    return torch.autograd.grad(slope.square().sum(), leaves, allow_unused=True)


@pytest.mark.parametrize(
    "cotangent", [torch.sum, lambda output: output.square().sum()], ids=["constant", "of the output"]
)
@pytest.mark.parametrize("name", CASES)
def test_second_derivatives_are_torchs_zeros_included(name, cotangent):
    mine, torchs = (second_derivatives(function, cotangent) for function in CASES[name])
    assert [one is None for one in mine] == [one is None for one in torchs]
    for one, other in zip(mine, torchs, strict=True):
        assert one is other is None or torch.equal(one, other)


def test_a_scalar():
    x = torch.tensor(2.0, requires_grad=True)
    [slope] = torch.autograd.grad(actcore.relu(x * 1), x, create_graph=True)
    assert torch.equal(torch.autograd.grad(slope, x)[0], torch.tensor(0.0))


def test_the_origin_keeps_no_memory():
    x = normal(1024).requires_grad_()
    hidden = x * 1
    output = actcore.relu(hidden)
    origin = output.grad_fn.origin
    assert origin.untyped_storage().nbytes() == 0
    assert origin._base is None
