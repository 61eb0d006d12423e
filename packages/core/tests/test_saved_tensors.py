"""``saved_tensors``: a policy for a block; contexts, threads, checkpoint and transforms."""

import threading

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import actcore

from .hooked import EIGHT_BITS, X, mlp, noting, under


def test_the_policy_is_told_what_is_saved():
    asked = []

    def policy(saved):
        asked.append(saved)
        return EIGHT_BITS if saved.shape == (64, 48) else actcore.Raw()

    model = mlp()
    with actcore.saved_tensors(policy) as context:
        y = model(X)
    assert isinstance(context, actcore.saved_tensors)
    y.sum().backward()
    assert [tuple(saved.shape) for saved in asked] == [(64, 48), (64, 64), (64, 64)]
    assert (asked[0].dtype, asked[0].strides, asked[0].requires_grad) == (torch.float32, (48, 1), False)
    exact = mlp()
    exact(X).sum().backward()
    assert torch.equal(model[2].weight.grad, exact[2].weight.grad)
    assert not torch.equal(model[0].weight.grad, exact[0].weight.grad)


def test_a_context_nests_and_is_used_again():
    inner, outer = noting(), noting()
    context = actcore.saved_tensors(lambda saved: inner)
    x = X.clone().requires_grad_()
    h = x * 1
    with actcore.saved_tensors(lambda saved: outer):
        with context, context:
            h.sin()
        h.cos()
    with context:
        h.sin()
    h.sin()
    assert (len(inner.shapes), len(outer.shapes)) == (2, 1)


def test_an_exception_closes_the_context():
    codec = noting()
    with pytest.raises(KeyboardInterrupt), actcore.saved_tensors(lambda saved: codec):
        raise KeyboardInterrupt
    (X.clone().requires_grad_() * 1).sin()
    assert codec.shapes == []


def test_hooks_belong_to_a_thread_and_backward_may_run_in_another():
    codec = noting()
    x = X.clone().requires_grad_()
    h = x * 1
    with under(codec):
        thread = threading.Thread(target=lambda: h.sin())
        thread.start()
        thread.join()
        assert codec.shapes == []
        y = h.sin().sum()
    thread = threading.Thread(target=y.backward)
    thread.start()
    thread.join()
    assert len(codec.shapes) == 1
    assert x.grad is not None


@pytest.mark.parametrize("order", ["checkpoint inside", "checkpoint outside"])
def test_with_checkpoint(order):
    x = X.clone().requires_grad_()

    def body(h):
        if order == "checkpoint inside":
            return h.sin().tanh()
        with under(EIGHT_BITS):
            return h.sin().tanh()

    if order == "checkpoint inside":
        with under(EIGHT_BITS):
            y = checkpoint(body, x * 1, use_reentrant=False)
    else:
        y = checkpoint(body, x * 1, use_reentrant=False)
    y.sum().backward()
    exact = (1 - X.sin().tanh() ** 2) * X.cos()
    # Inputs of sin within 8 / 255 (range of X), results of tanh within 2 / 255: each slope moves by that times 1 and 2.
    assert (x.grad - exact).abs().max() < 8 / 255 + 4 / 255 * (1 + 4 / 255)


def test_inside_a_function_mode():
    """The mode of whoever watches a forward does not see the work of the hooks."""

    class Watching(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    seen = []
    h = X.clone().requires_grad_() * 1
    with under(EIGHT_BITS), Watching():
        h.sin()
    assert seen == [torch.Tensor.sin]


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.jacrev], ids=["grad", "jacrev"])
def test_a_transform_in_the_context_names_the_ways_out(transform):
    with (
        pytest.raises(RuntimeError, match="saved tensor hooks") as error,
        actcore.saved_tensors(lambda saved: EIGHT_BITS),
    ):
        transform(lambda x: x.sin().sum())(X)
    [note] = error.value.__notes__
    assert "call the transform outside of their context, or save through actcore.save_for_backward" in note


def test_the_context_in_a_transform_names_the_ways_out():
    def function(x):
        with actcore.saved_tensors(lambda saved: EIGHT_BITS):
            return x.sin().sum()

    with pytest.raises(RuntimeError, match="saved tensor hooks") as error:
        torch.func.grad(function)(X)
    [note] = error.value.__notes__
    assert "actcore.save_for_backward" in note


def test_vmap_in_the_context():
    x = X.clone().requires_grad_()
    with actcore.saved_tensors(lambda saved: EIGHT_BITS):
        y = torch.vmap(torch.sin)(x * 1)
    y.sum().backward()
    assert (x.grad - X.cos()).abs().max() < 8 / 255
