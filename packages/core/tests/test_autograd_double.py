"""Double backward through what ``save_for_backward`` has stored: every term, or an error."""

import pytest
import torch

import actcore

from .samples import normal
from .saving import FOUR_BITS, Cube, Exponential, Linear, W, X


class Product(torch.autograd.Function):
    """Compute ``x @ w``, and store ``x`` in one bit."""

    @staticmethod
    def forward(ctx, x, w):
        actcore.save_for_backward(ctx, (x, actcore.GroupAffine(bits=1, group_size=32, rounding="nearest")), (w, None))
        return x @ w

    @staticmethod
    def backward(ctx, grad):
        x, w = actcore.saved_tensors_of(ctx)
        return grad @ w.t(), x.t() @ grad


class ProductInTwo(torch.autograd.Function):
    """Compute the same, in the style that ``torch.func`` needs."""

    @staticmethod
    def forward(x, w):
        return x @ w

    @staticmethod
    def setup_context(ctx, inputs, output):
        Product.forward(ctx, *inputs)

    backward = Product.backward


PRODUCTS = {"forward": Product, "setup_context": ProductInTwo}


def second_derivative(function, x):
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    return torch.autograd.grad(slope.sum(), x)[0]


def test_double_backward_has_every_term():
    """z = x ** 3, y = z ** 2 at x = 2: 30 x ** 4 = 480. A payload kept on ctx without history gave 288: it misses the
    6 x of z's own slope, times dy/dz = 16. The tensor is constant, so that storing it is exact."""
    x = torch.full((1024,), 2.0)
    assert torch.equal(second_derivative(lambda x: Cube.apply(x) ** 2, x), torch.full((1024,), 480.0))


def test_gradcheck_of_both_backwards(monkeypatch):
    """One bit stores two values exactly, in float64."""
    monkeypatch.setattr(Cube, "codec", actcore.GroupAffine(bits=1, group_size=32, rounding="nearest"))
    x = torch.tensor([0.5, -1.5], dtype=torch.float64).repeat(32).requires_grad_()

    def cube(values):
        return Cube.apply(values.view(2, 1).expand(2, 32).t().reshape(-1))

    values = torch.tensor([0.5, -1.5], dtype=torch.float64, requires_grad=True)
    assert second_derivative(Cube.apply, x).equal(6 * x.detach())
    assert torch.autograd.gradcheck(cube, values)
    assert torch.autograd.gradgradcheck(cube, values)


def test_double_backward_through_a_stored_result():
    x = torch.full((1024,), 0.5, requires_grad=True)
    y = Exponential.apply(x)  # alive until the second backward
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(slope.sum(), x)
    assert torch.equal(second, x.detach().exp())


@pytest.mark.parametrize("fate", ["dropped", "changed in place"])
def test_double_backward_through_a_result_that_is_gone_raises(fate):
    x = torch.full((1024,), 0.5, requires_grad=True)
    y = Exponential.apply(x)
    total = y.sum()
    if fate == "dropped":
        del y
    else:
        y.mul_(2)
    with pytest.raises(RuntimeError, match=r"would miss a term. Save the output exactly, \(tensor, None\)"):
        torch.autograd.grad(total, x, create_graph=True)


def test_double_backward_reaches_a_constant_input():
    """x asks for no gradient: nothing is missing, whether it is alive or not."""
    for keep in (True, False):
        w = W.clone().requires_grad_()
        x = X.clone()
        y = Linear.apply(x, w).square().sum()
        if not keep:
            del x
        (slope,) = torch.autograd.grad(y, w, create_graph=True)
        slope.square().sum().backward()
        assert w.grad is not None


@pytest.mark.parametrize("style", PRODUCTS)
def test_a_dropped_argument_of_a_results_shape_is_no_result(style):
    """The input is a temporary that requires no gradient and has the shape of the result. One bit stores its two values
    exactly, so the second derivatives equal torch's."""
    w = normal(32 * 32).view(32, 32).requires_grad_()
    batch = torch.tensor([0.5, -1.5]).repeat(4096).view(256, 32)

    def gradient(function):
        (slope,) = torch.autograd.grad(function(batch[:32], w).sin().sum(), w, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), w)[0]

    assert torch.equal(gradient(PRODUCTS[style].apply), gradient(torch.matmul))


def test_a_tensor_changed_by_its_own_function_is_a_result():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            x.exp_()
            actcore.save_for_backward(ctx, (x, FOUR_BITS))
            return x

        @staticmethod
        def backward(ctx, grad):
            return grad * actcore.saved_tensors_of(ctx)[0]

    def function(x):
        results.append(Double.apply(x * 1))
        return results[-1]

    results = []
    x = torch.full((1024,), 0.5)
    assert torch.equal(second_derivative(function, x), x.exp())
