"""The Functions of the fused operators cost no more than they must."""

import inspect
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import actcore
from actcore.fused import levels, masked, pool, stepwise

X = torch.tensor([-1.0, 0.5, 2.0, -0.0])

CALLS: list[tuple[Callable[[Tensor], Tensor], type[Function]]] = [
    (actcore.relu, masked.MaskBackward),
    (lambda x: actcore.dropout(x, 0.5, seed=1), masked.MaskBackward),
    (lambda x: actcore.stepwise(x, "relu", (0.0,), (0.0, 1.0)), stepwise.StepwiseBackward),
    (lambda x: actcore.round_to_levels(x, "gelu", (-0.2, 1.2), seed=1), stepwise.StepwiseBackward),
    (lambda x: actcore.max_pool1d(x[None, None], 2), pool.MaxPoolBackward),
]


@pytest.mark.parametrize("module", [levels, masked, pool, stepwise])
def test_calls_are_bound_to_a_signature_that_is_at_hand(module: ModuleType) -> None:
    # torch asks inspect for the signature at each call; without one at hand it is worked out anew.
    functions = [
        one
        for one in vars(module).values()
        if inspect.isclass(one) and issubclass(one, Function) and one.__module__ == module.__name__
    ]
    assert functions
    assert all("__signature__" in vars(function.forward) for function in functions)


@pytest.mark.parametrize(("call", "backward"), CALLS)
def test_backward_makes_no_history_that_nobody_asked_for(
    call: Callable[[Tensor], Tensor], backward: type[Function], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = X.clone().requires_grad_()
    y = call(x)
    (expected,) = torch.autograd.grad(y.sum(), x, retain_graph=True)

    def refuse(*arguments: object) -> None:
        raise AssertionError("a Function was called")

    monkeypatch.setattr(backward, "apply", refuse)
    (gradient,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=0)
    with pytest.raises((AssertionError, RuntimeError)):
        torch.autograd.grad(y.sum(), x, create_graph=True)
