"""A capture's backward ends where the forward began: what made the tensors that are given is the real step's."""

import functools
from typing import NamedTuple

import pytest
import torch
from torch import nn

import integrations
from integrations import checkpoint

from .nets import Net, normal

pytestmark = pytest.mark.usefixtures("alone", "no_fakes")


class Attributes:
    """What a forward is given beside tensors."""


class Twins(NamedTuple):
    one: torch.Tensor
    names: tuple


class Noted(tuple):
    """A tuple with an attribute."""


def noted(tensor):
    found = Noted((tensor,))
    found.place = 0
    return found


def cell_of(tensor):
    held = (tensor,)
    return lambda: held[0]


def default_of(tensor):
    def read(value=tensor):
        return value

    return read


HELD = {  # how an object that a forward is given holds a tensor, and reads it again
    "tuple": (lambda tensor: (1, tensor), lambda held: held[1]),
    "tuples": (lambda tensor: [((tensor,), "a")], lambda held: held[0][0][0]),
    "named": (lambda tensor: Twins(tensor, ("a",)), lambda held: held.one),
    "with an attribute": (noted, lambda held: held[held.place]),
    "of torch": (lambda tensor: torch.return_types.max((tensor, None)), lambda held: held.values),
    "partial": (lambda tensor: functools.partial(lambda value: value, tensor), lambda held: held()),
    "closure": (cell_of, lambda held: held()),
    "default": (default_of, lambda held: held()),
    "distribution": (lambda tensor: torch.distributions.Normal(tensor, 1.0), lambda held: held.loc),
}


@pytest.mark.parametrize("holder", HELD)
@pytest.mark.parametrize("real", [False, True], ids=["fake", "real"])
def test_what_made_a_tensor_in_a_tuple_is_not_run_backward(holder, real):
    """A tuple cannot be written to, and the tensors in it had no stand-ins: the capture's backward freed what autograd
    keeps of the operators before the forward, and wrote gradients without elements to weights outside of the model."""
    hold, read = HELD[holder]
    before, given = nn.Linear(8, 8), Attributes()
    model = Net(lambda self, given: torch.tanh(read(given.keys) @ self.w).sum(), w=torch.eye(8)).train()
    held = given.keys = hold(before(normal(4, 8)).exp())
    there = read(held)
    plan = checkpoint.plan(model, given, real=real)
    assert given.keys is held
    assert read(held) is there
    assert before.weight.grad is None
    checkpoint.apply(model, plan)
    model(given).backward()
    expected = torch.autograd.grad(torch.tanh(before(normal(4, 8)).exp() @ model.w).sum(), list(before.parameters()))
    assert all(map(torch.equal, expected, [parameter.grad for parameter in before.parameters()]))


@pytest.mark.parametrize("real", [False, True], ids=["fake", "real"])
def test_a_tensor_with_a_gradient_that_has_no_stand_in_is_refused(real):
    before, given = nn.Linear(8, 8), Attributes()
    model = Net(lambda self, given: (next(iter(given.keys)).t() @ self.w).sum(), w=torch.eye(4)).train()
    given.keys = {before(normal(4, 8)).exp()}
    with pytest.raises(ValueError, match="was computed before it with a gradient"):
        checkpoint.plan(model, given, real=real)
    integrations.compress_model(model, error=0)
    with pytest.raises(ValueError, match=r"no plan can be made .* was computed before it with a gradient"):
        model(given)
    integrations.restore_model(model)
    model(given).backward()
    expected = torch.autograd.grad((before(normal(4, 8)).exp().t() @ model.w).sum(), list(before.parameters()))
    assert all(map(torch.equal, expected, [parameter.grad for parameter in before.parameters()]))


@pytest.mark.parametrize("real", [False, True], ids=["fake", "real"])
def test_a_leaf_that_has_no_stand_in_keeps_its_gradient(real):
    """Nothing made it; but the capture's backward would add to its gradient, fake tensors above all."""
    leaves, given = [torch.ones(8, requires_grad=True) for _ in range(2)], Attributes()
    model = Net(lambda self, given: (self.w * sum(given.keys)).sum(), w=torch.eye(8)).train()
    given.keys = set(leaves)
    known = leaves[0].grad = torch.full((8,), 2.0)
    checkpoint.plan(model, given, real=real)
    assert leaves[0].grad is known
    assert torch.equal(known, torch.full((8,), 2.0))
    assert leaves[1].grad is None


@pytest.mark.parametrize("real", [False, True], ids=["fake", "real"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.tensor(2.0, requires_grad=True),
        lambda: torch.frombuffer(bytearray(32), dtype=torch.float32).requires_grad_(),
    ],
    ids=["tensor", "frombuffer"],
)
def test_a_forward_may_make_leaves(make, real):
    model = Net(lambda self, x: torch.tanh(x @ self.w * make()).sum(), w=torch.eye(8)).train()
    assert checkpoint.plan(model, normal(4, 8), real=real).graph.ops


def test_tuples_in_tuples_are_searched_once_and_not_without_end():
    """A hundred deep, and each tuple twice in the next: as a tree these are more than there are atoms."""
    shared, deep = (torch.ones(3),), (torch.ones(3),)
    for _ in range(90):
        shared = (shared, shared)
    for _ in range(5000):
        deep = (deep,)
    given = Attributes()
    given.keys = shared, deep
    model = Net(lambda self, given: self.w.square().sum() if given.keys else 0, w=torch.eye(8)).train()
    before = given.keys
    checkpoint.plan(model, given)
    assert given.keys is before
