"""Histories that hang, raise or end the process when they are read carelessly."""

import json
import subprocess
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import integrations
from integrations.planner.sensitivity import graph, surroundings
from integrations.tracing.tensors import find_node, has_history

from .forks import Fork
from .history_child import CASES
from .nets import Net, normal

CHILD = Path(__file__).with_name("history_child.py")
WAYS = ("L1", "L1.1", "block", "L2, adapted")


def told(*args):
    """What a child prints, all or until it hangs or ends: where the GIL is held, only another process can wait."""
    try:
        printed, _ = Fork(CHILD, *args).communicate(timeout=120)
    except subprocess.TimeoutExpired as stopped:
        printed = stopped.stdout
    return [json.loads(line) for line in printed.splitlines()]


@pytest.fixture(scope="module")
def compared():
    return {(way, case): rest for way, case, *rest in told("compare", *WAYS)}


@pytest.mark.parametrize("case", [case.__name__ for case in CASES])
@pytest.mark.parametrize("way", WAYS)
def test_views_that_are_changed_in_place_neither_hang_nor_raise(compared, way, case):
    assert (way, case) in compared, f"came back: {list(compared)}"
    error, bound = compared[way, case]
    assert error <= bound


def test_deep_chains_are_freed_without_recursion():
    assert told("deep", "L1", "block") == [["L1"], ["block"]]


def chain(net, x):
    x = x @ net.weight
    for _ in range(20):
        x = F.silu(x)
    return x.sum()


def test_a_graph_of_too_many_nodes_is_not_measured(monkeypatch):
    monkeypatch.setattr(graph, "MOST_NODES", 10)
    model, x = Net(chain, weight=normal(64, 64)), normal(32, 64)
    handle = integrations.compression(integrations.compress_model(model, "L2"))
    model(x).backward()
    with pytest.warns(UserWarning, match="L2 makes no plan: the forward makes more than"):
        model(x).backward()
    assert handle.plan is None
    with pytest.raises(RuntimeError, match="more than 16384 autograd nodes"):
        handle.adapt(lambda: model(x).backward())


def test_a_closure_whose_backward_goes_through_too_many_nodes_is_refused(monkeypatch):
    monkeypatch.setattr(surroundings, "MOST_NODES", 10)
    model, x = Net(chain, weight=normal(64, 64)), normal(32, 64)
    handle = integrations.compression(integrations.compress_model(model, "L2"))
    with pytest.raises(RuntimeError, match="must go through at most 10 autograd nodes"):
        handle.adapt(lambda: model(x).backward())


def test_histories_are_what_grad_fn_tells():
    leaf = torch.ones(4, requires_grad=True)
    made, none = leaf * 2, torch.ones(4)
    with torch.no_grad():
        unrecorded = made.view(2, 2)
    for tensor in (leaf, made, none, leaf.view(2, 2), made.view(2, 2), made.detach(), unrecorded, none.view(2, 2)):
        assert has_history(tensor) == (tensor.grad_fn is not None)
        assert find_node(tensor) is tensor.grad_fn
    made.mul_(2)
    assert has_history(unrecorded)  # of which grad_fn raises
    assert find_node(unrecorded) is None
