"""The bytes that a graph foretells are the ones that a step takes, and nothing outlives the step."""

import gc
import weakref

import pytest
import torch
from torch import nn

from integrations.capture.graphs.schedule import Schedule
from integrations.checkpoint import capture
from integrations.runtime.repeating.segments import Segment

from .nets import mlp, normal
from .recompute_nets import net
from .recompute_reference import LiveBytes, counted_peak, random_kept, simulated_peak
from .recompute_run import run


def wide():
    """Where activations are the most of a step."""
    torch.manual_seed(0)
    layers = (layer for _ in range(5) for layer in (nn.Linear(16, 16), nn.ReLU(inplace=True), nn.Tanh()))
    return nn.Sequential(*layers).train(), (normal(512, 16),)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("made", [wide, lambda: net("resnet")[:2], lambda: net("densenet")[:2]])
def test_the_peak_is_the_one_that_was_foretold(made, share):
    model, args = made()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # the generator's state is some bytes, too
    graph = capture(model, args)
    for seed in range(2):
        kept = random_kept(graph, share, seed)
        model.zero_grad()
        counted = counted_peak(model, graph, kept, *args)
        assert counted == simulated_peak(graph, kept)


def test_the_forward_holds_what_is_kept_and_no_more():
    model, args = mlp(width=32, depth=4).train(), (normal(64, 32),)
    graph = capture(model, args)
    nbytes = 64 * 32 * 4
    relus = [op.makes[0] for op in graph.ops if op.name.startswith("aten.relu")]
    for kept, boundaries in ((range(len(graph.values)), 4), ([], 1), (relus[1:2], 2)):
        with LiveBytes() as live:
            output = run(model, graph, kept)(*args)
            assert live.now == boundaries * nbytes
            del output
            assert live.now == 0


def test_what_is_recomputed_goes_as_backward_goes():
    """Repeating everything at once costs the plain step's bytes, two segments those of one and a boundary."""
    model, args = mlp(width=32, depth=8).train(), (normal(256, 32),)
    graph = capture(model, args)
    middle = [op.makes[0] for op in graph.ops if op.name.startswith("aten.relu")][3:4]
    assert len({op.segment for op in Schedule.of(graph, middle).ops} - {-1}) == 2
    model.zero_grad()
    whole = counted_peak(model, graph, [], *args)
    model.zero_grad()
    assert counted_peak(model, graph, middle, *args) <= whole - 2 * 256 * 32 * 4


def test_the_graph_owns_everything(no_garbage_collection):
    model, args = net("resnet")[:2]
    graph = capture(model, args)
    for share in (0.0, 0.5):
        output = run(model, graph, random_kept(graph, share))(*args)
        held = [handle for handle in gc.get_objects() if isinstance(handle, Segment)]
        assert held
        held = [weakref.ref(segment) for segment in held]
        del output
        assert not any(segment() for segment in held)


def test_a_capture_leaves_no_tensor_behind():
    model, args = net("resnet")[:2]
    capture(model, args)
    gc.collect()
    before = tensors()  # held, so that no later tensor gets the identity of one of them
    capture(model, args)
    gc.collect()
    known = set(map(id, before))
    assert not [tensor.shape for tensor in tensors() if id(tensor) not in known]


def tensors():
    """All of the process, other tests' too."""
    return [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
