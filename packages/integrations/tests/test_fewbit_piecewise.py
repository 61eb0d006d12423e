"""Piecewise linear activations: torch's gradients, bit for bit, from one bit an element."""

import math

import pytest
import torch
import torch.nn.functional as F

from integrations import fewbit

from .fewbit_samples import (
    DTYPES,
    PIECEWISE,
    STRETCH,
    at_the_borders,
    code_bytes,
    few_bits,
    get_gradient,
    name_of,
    normal,
    same_bits,
)

every_function = pytest.mark.parametrize(("name", "parameters"), PIECEWISE)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@every_function
def test_values_and_gradients_are_torchs_bit_for_bit(name, parameters, dtype):
    x = at_the_borders(dtype)
    gradient = normal(len(x), seed=1, dtype=dtype)
    gradient[::17], gradient[1::19] = math.inf, -math.inf
    mine = get_gradient(lambda x: few_bits(name)(x, *parameters), x, gradient)
    torchs = get_gradient(lambda x: getattr(F, name)(x, *parameters), x, gradient)
    assert same_bits(mine[0], torchs[0])
    assert same_bits(mine[1], torchs[1])


@every_function
def test_nan_passes_forward_and_its_gradient_is_nan_or_torchs(name, parameters):
    """torch computes two different ones for hardtanh and the shrinking functions: 0 in vectors, and the gradient."""
    x = torch.full((65,), math.nan)
    mine = get_gradient(lambda x: few_bits(name)(x, *parameters), x, torch.ones(65))
    torchs = get_gradient(lambda x: getattr(F, name)(x, *parameters), x, torch.ones(65))
    assert same_bits(mine[0], torchs[0])
    assert len(mine[1].nan_to_num(9).unique()) == 1
    assert mine[1].isnan().all() or mine[1][0] in torchs[1]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("threshold", (math.inf, 0.0)),
        ("hardshrink", (math.inf,)),
        ("threshold", (math.nan, 0.0)),
        ("hardshrink", (-1.0,)),
    ],
)
def test_strange_parameters_are_torchs(name, parameters):
    x = torch.tensor([-math.inf, -1.0, 0.0, 1.0, 2.0, math.inf])
    mine = get_gradient(lambda x: few_bits(name)(x, *parameters), x, torch.ones(6))
    torchs = get_gradient(lambda x: getattr(F, name)(x, *parameters), x, torch.ones(6))
    assert same_bits(mine[0], torchs[0])
    assert same_bits(mine[1], torchs[1])


@every_function
def test_one_bit_an_element_is_saved(name, parameters):
    guard = 8 if name == "leaky_relu" else 0  # its operator notes stretches that hold a NaN
    assert code_bytes(lambda x: few_bits(name)(x, *parameters), normal(8 * STRETCH)) == STRETCH + guard


@pytest.mark.parametrize("name", ["threshold", "hardtanh", "leaky_relu", "hardsigmoid", "relu", "relu6"])
def test_in_place(name):
    parameters = (0.1, 0.2) if name == "threshold" else ()
    x, gradient = normal(257), normal(257, seed=1)
    out = get_gradient(lambda x: getattr(F, name)(x * 1, *parameters, inplace=True), x, gradient)

    def mine(x):
        inner = x * 1
        output = few_bits(name)(inner, *parameters, inplace=True)
        assert output.data_ptr() == inner.data_ptr()
        return output

    for got, expected in zip(get_gradient(mine, x, gradient), out, strict=True):
        assert same_bits(got, expected)
    with torch.no_grad():
        assert few_bits(name)(x, *parameters, inplace=True) is x


@pytest.mark.parametrize(
    ("name", "parameters"),
    [case for case in PIECEWISE if case[0] != "hardsigmoid"],  # torch has none
)
def test_second_derivatives_are_torchs(name, parameters):
    at = normal(64, dtype=torch.float64).requires_grad_()

    def twice(function):
        [first] = torch.autograd.grad(function(at, *parameters).square().sum(), at, create_graph=True)
        return torch.autograd.grad(first.square().sum(), at)[0]

    assert torch.equal(twice(few_bits(name)), twice(getattr(F, name)))


def test_relu6_of_a_channels_last_image_keeps_its_memory_order():
    x = normal(2, 3, 4, 4).to(memory_format=torch.channels_last).requires_grad_()
    output = fewbit.functional.relu6(x)
    assert output.is_contiguous(memory_format=torch.channels_last)
    gradient = normal(2, 3, 4, 4, seed=1)
    output.backward(gradient)
    assert torch.equal(x.grad, torch.where((x > 0) & (x < 6), gradient, 0))
