"""Forwards that follow a plan in which each value has its own planned: kept, recomputed, or in a store."""

import copy
import gc
import pickle
import warnings
import weakref

import pytest
import torch

import integrations
from integrations.policies.stores import Store
from integrations.runtime.repeating.segments import Segment
from integrations.tracing.storage.regions import Region

from .nets import gradients, normal
from .planned_values import EXACT, ROUNDED, drawn, follow, graph_of
from .recompute_nets import NETS, net, random_net
from .recompute_reference import outcome


def assert_as_plain(model, args, kwargs, steps=1):
    """The step leaves, bit for bit, what a plain one does: outputs, gradients, buffers, the generator."""
    twin = integrations.restore_model(copy.deepcopy(model))
    ours = outcome(model, model, args, kwargs, steps)
    plain = outcome(twin, twin, args, kwargs, steps)
    assert len(ours) == len(plain)
    assert all(map(torch.equal, ours, plain))


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("seed", range(3))
def test_exact_plans_are_the_plain_step(name, seed):
    """Bit for bit, whatever is kept, in exact forms, or recomputed; the level's bits do not matter."""
    model, args, kwargs = net(name)
    graph = graph_of(model, args, kwargs)
    assert_as_plain(follow(model, graph, *drawn(graph, seed, EXACT)), args, kwargs)


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("seed", range(12))
def test_exact_plans_of_random_nets_are_the_plain_step(seed):
    model, args = random_net(seed)
    graph = graph_of(model, args)
    kept, stores = drawn(graph, seed, EXACT)
    held = None if seed % 2 else [value for value in range(len(graph.values)) if value % 3]
    assert_as_plain(follow(model, graph, kept, stores, held), args, {})


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("seed", range(3))
def test_rounded_plans_come_close(name, seed):
    """The forward is the plain one; loosely: 0.15 is what L1 itself is allowed, at 4 bits."""
    model, args, kwargs = net(name)
    graph = graph_of(model, args, kwargs, rounded=True)
    twin = copy.deepcopy(model)
    follow(model, graph, *drawn(graph, seed, ROUNDED))
    found, plain = (outcome(one, one, args, kwargs) for one in (model, twin))
    trained = [parameter for parameter in model.parameters() if parameter.grad is not None]
    first = len(found) - 1 - len(list(model.buffers())) - len(trained)
    slopes = slice(first, first + len(trained))
    assert all(map(torch.equal, found[:first], plain[:first]))
    ours, exact = (torch.cat([slope.flatten() for slope in one[slopes]]) for one in (found, plain))
    assert (ours - exact).norm() < 0.15 * exact.norm()


class Turning(torch.nn.Module):
    """A forward that may go another way in the middle."""

    turns = False

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(6))

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            x = layer(x)
            x = x.tanh() if self.turns and number == 2 else torch.relu(x)
        return x.square().sum()


@pytest.mark.parametrize("rounded", [False, True])
def test_another_forward_than_was_planned_for(rounded):
    """It is told of once. From there on nothing is rounded if the plan is exact; else all is, in the bits that the
    fallback has."""
    model, x = Turning().train(), normal(16, 32)
    graph = graph_of(model, (x,), rounded=rounded)
    values = {value for op in graph.ops for value in op.makes}
    follow(model, graph, values, dict.fromkeys(values, Store(8) if rounded else Store()))
    model.turns = True
    plain = gradients(integrations.restore_model(copy.deepcopy(model)), x, loss=torch.clone)
    with pytest.warns(UserWarning, match="forward is not the one that was captured") as told:
        found = gradients(model, x, loss=torch.clone)
    rows = integrations.compression(model).report().rows
    assert any("GroupAffine" in row.codec for row in rows) is rounded
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = gradients(model, x, loss=torch.clone)  # by a plan of its own, or the same
    assert len(told) == 1
    for name, slope in plain.items():
        if rounded:
            assert (found[name] - slope).norm() < 0.05 * slope.norm()
        else:
            assert torch.equal(found[name], slope)
            assert torch.equal(again[name], slope)


def test_several_forwards_before_a_backward_and_a_retained_graph():
    model, args, kwargs = net("transformer")
    graph = graph_of(model, args, kwargs)
    follow(model, graph, *drawn(graph, 5, EXACT))
    twin = integrations.restore_model(copy.deepcopy(model))
    found = []
    for one in (model, twin):
        torch.manual_seed(3)
        first, second = one(*args).square().sum(), one(*args).sin().sum()
        first.backward(retain_graph=True)
        (first + second).backward()
        found.append([parameter.grad for parameter in one.parameters()])
    assert all(map(torch.equal, *found))


def test_copies_and_pickles_follow_it_too():
    model, args, kwargs = net("resnet")
    graph = graph_of(model, args, kwargs)
    follow(model, graph, *drawn(graph, 1, EXACT))
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_as_plain(twin, args, kwargs)
        assert integrations.compression(twin).report().recomputed_bytes > 0


def test_the_graph_owns_all_that_is_stored():
    """When it goes, with or without a backward, so do segments and stored forms, at once."""
    model, args, kwargs = net("transformer")
    graph = graph_of(model, args, kwargs, rounded=True)
    follow(model, graph, *drawn(graph, 2, ROUNDED))
    model(*args)  # what is found out once
    for backward in (False, True):
        gc.collect()
        gc.disable()
        try:
            before = {id(thing) for thing in gc.get_objects()}  # what a test that has failed keeps, too
            output = model(*args)
            held = [
                weakref.ref(thing)
                for thing in gc.get_objects()
                if type(thing) in (Segment, Region) and id(thing) not in before
            ]
            assert held
            if backward:
                output.sum().backward()
            del output
            assert not any(thing() for thing in held)
        finally:
            gc.enable()
