"""Forwards that follow a plan in which each value has its own fate: kept, recomputed, or in a store."""

import copy
import warnings

import pytest
import torch

import integrations
from integrations.stores import Store

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
    """Bit for bit, whatever is kept, in exact forms, or made again; the level's bits do not matter."""
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
