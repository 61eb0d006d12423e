"""``stepwise`` of a function of the user's own."""

import re

import pytest
import torch

import actcore

from .fused_samples import levels_for
from .samples import DTYPES, name_of, normal, same_bits

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
TABLES = {dtype: levels_for(3, dtype) for dtype in DTYPES}


def wave(x, frequency=2.0):
    return x * torch.sin(frequency * x)


def layer(x):
    return actcore.stepwise(x, wave, *TABLES[x.dtype], parameters=[3.0], guard="nan")


@every_dtype
def test_values_are_the_functions_and_the_gradient_is_the_level(dtype):
    x = normal(1001, dtype).requires_grad_()
    boundaries, levels = TABLES[dtype]
    output = layer(x)
    assert same_bits(output.detach(), wave(x.detach(), 3.0))
    gradient = normal(1001, dtype, seed=3)
    output.backward(gradient)
    level = levels[torch.bucketize(x.detach().to(levels.dtype), boundaries, right=True)]
    assert torch.equal(x.grad, (gradient.to(levels.dtype) * level).to(dtype))


def test_nothing_but_codes_and_levels_is_saved():
    x, weight = normal(1001).requires_grad_(), torch.ones(1, requires_grad=True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        output = actcore.stepwise(x, lambda x: torch.sin(x * weight), *TABLES[torch.float32])
    assert [(tensor.dtype, tensor.numel()) for tensor in saved] == [(torch.uint8, 376), (torch.float32, 8)]
    output.sum().backward()
    assert weight.grad is None


@pytest.mark.parametrize("alike", [lambda x: x, lambda x: x.view_as(x), lambda x: x.view(2, 5).flatten()])
def test_its_output_is_a_tensor_of_its_own(alike):
    x = normal(10)
    for output in (
        actcore.stepwise(x, alike, *TABLES[torch.float32]),
        actcore.round_to_levels(x, alike, (0.0, 2.0)),
        actcore.round_to_levels(x.clone().requires_grad_(), alike, (0.0, 2.0)).detach(),
    ):
        assert torch.equal(output, x)
        assert output.data_ptr() != x.data_ptr()


def test_its_output_may_be_changed_in_place():
    x = normal(10).requires_grad_()
    before = x.detach().clone()
    with torch.no_grad():
        actcore.stepwise(x, lambda x: x[:], *TABLES[torch.float32]).zero_()
        actcore.round_to_levels(x, lambda x: x[:], (0.0, 2.0)).zero_()
    assert torch.equal(x, before)


def test_derivatives_and_transforms():
    x = normal(35, torch.float64).view(5, 7)
    weights = normal(35, torch.float64, seed=1).view(5, 7)
    boundaries, levels = TABLES[torch.float64]
    level = levels[torch.bucketize(x, boundaries, right=True)]
    assert torch.equal(torch.func.grad(lambda x: (layer(x) * weights).sum())(x), weights * level)
    assert torch.equal(torch.func.vmap(layer)(x), wave(x, 3.0))
    assert torch.equal(torch.func.vmap(torch.func.grad(lambda x: layer(x).sum()))(x), level)
    leaf = x.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(layer(leaf), leaf, weights, create_graph=True)


def test_memory_orders():
    x = normal(2 * 3 * 4 * 4).view(2, 3, 4, 4)
    for case in (x.contiguous(memory_format=torch.channels_last), x.transpose(1, 3), x[..., ::2]):
        leaf, same = case.detach().requires_grad_(), case.detach().contiguous().requires_grad_()
        gradient = normal(case.numel(), seed=4).view(case.shape)
        (got,) = torch.autograd.grad(layer(leaf), leaf, gradient)
        (expected,) = torch.autograd.grad(layer(same), same, gradient)
        assert torch.equal(got, expected)


def test_compiled():
    x = normal(3000).view(30, 100)
    mine, compiled = x.clone().requires_grad_(), x.clone().requires_grad_()
    layer(mine).square().sum().backward()
    torch.compiler.reset()
    torch.compile(lambda x: layer(x).square().sum(), fullgraph=True, backend="aot_eager")(compiled).backward()
    assert torch.equal(mine.grad, compiled.grad)


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (torch.sum, ValueError, "function must be applied to each element and return the shape of x, (13, 10), got ()"),
        (torch.Tensor.double, TypeError, "function must return the dtype of x, torch.float32, got torch.float64"),
        (torch.Tensor.relu_, ValueError, "function must not change x in place; pass a function"),
        (lambda x: 3, TypeError, "function must return a tensor, got int"),
        (lambda x: x.to("meta"), ValueError, "function must return a tensor on the device of x, cpu, got meta"),
    ],
)
def test_functions_that_are_not_of_each_element(function, error, text):
    with pytest.raises(error, match=re.escape(text)):
        actcore.stepwise(normal(130).view(13, 10), function, *TABLES[torch.float32])


def test_inference_mode():
    with torch.inference_mode():
        x = normal(100)
        assert torch.equal(layer(x), wave(x, 3.0))
