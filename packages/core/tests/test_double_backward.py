"""A backward with ``create_graph=True`` warns if it reads tensors that a codec has rounded."""

import warnings

import pytest
import torch

import actcore
from actcore.double_backward import rounds

from .samples import normal
from .saving import Cube


def warned(function, action="always"):
    """Return the warnings of a call. Python's action for users is "default"."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter(action)
        function()
    return found


def twice(function, **options):
    """Differentiate a function, and have autograd build a graph of that."""
    x = normal(1024).requires_grad_()
    torch.autograd.grad(function(x).sum(), x, create_graph=True, **options)


def under_hooks(codec):
    def function(x):
        with torch.autograd.graph.saved_tensors_hooks(*actcore.hooks(codec)):
            return (x * 1).pow(3)

    return function


def under_a_policy(codec):
    def function(x):
        with actcore.saved_tensors(lambda saved: codec):
            return (x * 1).pow(3)

    return function


def cube(codec):
    class Stored(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            actcore.save_for_backward(ctx, (x, codec))
            return x**3

        @staticmethod
        def backward(ctx, gradient):
            return 3 * actcore.saved_tensors_of(ctx)[0] ** 2 * gradient

    return Stored.apply


WAYS = {"save_for_backward": cube, "hooks": under_hooks, "saved_tensors": under_a_policy}


@pytest.mark.parametrize("codec", [actcore.GroupAffine(bits=8), actcore.Offload(actcore.Float8())], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_reading_rounded_tensors_warns_at_the_users_line(way, codec):
    [warning] = warned(lambda: twice(WAYS[way](codec)))
    assert "create_graph=True" in str(warning.message)
    assert "actcore.Raw()" in str(warning.message)
    assert warning.filename == __file__


@pytest.mark.parametrize("codec", [actcore.Raw(), actcore.Offload()], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_exact_tensors_stay_silent(way, codec):
    assert not warned(lambda: twice(WAYS[way](codec)))


def test_codecs_that_lose_nothing():
    exact = [actcore.Raw(), actcore.BitMask(), actcore.Narrow(0, 3), actcore.Offload(actcore.BitMask())]
    assert not any(map(rounds, exact))
    assert all(map(rounds, [actcore.GroupAffine(bits=8), actcore.Float8(), actcore.Offload(actcore.Float8())]))


@pytest.mark.parametrize("way", WAYS)
def test_a_loop_prints_one_warning(way):
    def train():
        for _ in range(3):
            twice(WAYS[way](actcore.GroupAffine(bits=8)))

    assert len(warned(train, "default")) == 1


class EnablesGradients(torch.autograd.Function):
    """Read a stored tensor where gradients are enabled, as Functions do that compute their forward again."""

    @staticmethod
    def forward(ctx, x):
        actcore.save_for_backward(ctx, (x, actcore.GroupAffine(bits=8)))
        return x.tanh()

    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad():
            x = actcore.saved_tensors_of(ctx)[0].detach().requires_grad_()
            output = x.tanh()
        return torch.autograd.grad(output, x, gradient)


def test_first_derivatives_stay_silent():
    x = normal(1024)

    def plain():
        leaf = x.clone().requires_grad_()
        EnablesGradients.apply(leaf).sum().backward()
        under_hooks(actcore.GroupAffine(bits=8))(leaf).sum().backward(retain_graph=True)

    assert not warned(plain)
    # torch.func builds a graph of every backward.
    assert not warned(lambda: torch.func.grad(lambda x: Cube.apply(x).sum())(x))
    assert not warned(lambda: torch.func.vjp(Cube.apply, x)[1](x))
