"""Second derivatives of layers with own storage are zeros, or ``None``, for the same parameters as in torch's module.

Optimizers skip a parameter whose gradient is ``None``, including its momentum.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from integrations import fewbit, qmodules

from .fewbit_samples import PIECEWISE, few_bits, normal
from .libraries import TORCH
from .test_qlayers_surroundings import DIFFERENTIABLE, q_layer

FEWBIT = {
    f"{name}{list(parameters)}": (few_bits(name), getattr(F, name), parameters)
    for name, parameters in PIECEWISE
    if name != "hardsigmoid"  # torch has no second derivative of it
}
GATED = {"reglu": "relu", "swiglu": "silu", "geglu": "gelu"}
NORMS = [nn.LayerNorm(8), nn.GroupNorm(2, 8), nn.RMSNorm(8)]


def second_derivatives(function, x, module=None, square=True):
    """Differentiate the squared slope by an input, a weight and a bias before the function, and its parameters."""
    leaves = [x.detach().clone().requires_grad_(), normal(x.shape[-1], seed=7), normal(x.shape[-1], seed=8)]
    leaves = [leaf.to(x.dtype).requires_grad_() for leaf in leaves]
    output = function(leaves[0] * leaves[1] + leaves[2])
    total = output.square().sum() if square else output.sum()
    [slope] = torch.autograd.grad(total, leaves[0], create_graph=True)
    wanted = [*leaves, *(() if module is None else module.parameters())]
    return torch.autograd.grad(slope.square().sum(), wanted, allow_unused=True)


def require_same(mine, torchs):
    assert [one is None for one in mine] == [one is None for one in torchs]
    for one, other in zip(mine, torchs, strict=True):
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


squares = pytest.mark.parametrize("square", [True, False], ids=["of the square", "of the sum"])


@squares
@pytest.mark.parametrize("name", FEWBIT)
def test_piecewise_linear_functions(name, square):
    mine, torchs, parameters = FEWBIT[name]
    x = normal(16, 32, dtype=torch.float64)
    found = [second_derivatives(lambda x, one=one: one(x, *parameters), x, square=square) for one in (mine, torchs)]
    require_same(*found)


@squares
@pytest.mark.parametrize("name", GATED)
def test_exact_gates(name, square):
    activation = getattr(F, GATED[name])
    x = normal(16, 32, dtype=torch.float64)

    def torchs(x):
        gate, value = x.chunk(2, -1)
        return activation(gate) * value

    gated = getattr(fewbit.functional, name)
    require_same(second_derivatives(gated, x, square=square), second_derivatives(torchs, x, square=square))


@squares
@pytest.mark.parametrize("norm", NORMS, ids=lambda norm: type(norm).__name__)
def test_norms_that_keep_their_output(norm, square):
    torchs = copy.deepcopy(norm).double()
    mine = fewbit.convert(nn.Sequential(copy.deepcopy(torchs)), norms=True)
    x = normal(16, 8, dtype=torch.float64)
    for one, other in zip(*(second_derivatives(one, x, one, square) for one in (mine, torchs)), strict=True):
        if other is not None:
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
        elif one is not None:  # the output's bias cancels that of its readers, up to rounding
            assert one.abs().max() < 1e-9


@squares
@pytest.mark.parametrize(
    ("layer", "x"),
    [*DIFFERENTIABLE, (nn.LeakyReLU(), DIFFERENTIABLE[-1][1]), (nn.AdaptiveAvgPool2d(2), DIFFERENTIABLE[-2][1])],
    ids=lambda value: type(value).__name__,
)
def test_q_layers(layer, x, square):
    torchs = copy.deepcopy(layer).double()
    mine = q_layer(copy.deepcopy(torchs))
    if isinstance(layer, nn.GroupNorm) and not square and TORCH < (2, 14):
        pytest.skip("before torch 2.14 a GroupNorm's bias has None there, where Q-layers have zeros")
    found = [second_derivatives(one, x, one, square) for one in (mine, torchs)]
    assert [one is None for one in found[0]] == [one is None for one in found[1]]


def test_momentum_moves_a_bias_in_front_of_an_activation_as_torchs_does():
    """With only a gradient penalty, the gradient by the bias is zero, and momentum of earlier steps still moves it."""

    def trained(function):
        bias = nn.Parameter(normal(16, seed=3))
        x, optimizer = normal(8, 16).requires_grad_(), torch.optim.Adam([bias], lr=0.1)
        for step in range(3):
            output = function(x + bias)
            [slope] = torch.autograd.grad(output.sum(), x, create_graph=True)
            optimizer.zero_grad()
            (slope.square().sum() if step else output.square().sum()).backward()
            optimizer.step()
        return bias.detach()

    expected = trained(F.leaky_relu)
    assert torch.equal(trained(fewbit.functional.leaky_relu), expected)
    assert torch.equal(trained(qmodules.QLeakyReLU()), expected)
