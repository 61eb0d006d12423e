"""A checkpointed model beside its plain twin, through anything that a training loop does."""

import contextlib
import copy

import torch

from integrations.capture.graphs.schedule import Schedule
from integrations.checkpoint import capture

from .recompute_run import run


def left_by(model):
    """Gradients, parameters and buffers."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [*gradients, *model.parameters(), *model.buffers()]


def assert_like_twin(model, args, step, kept=(), repeated=1, around=contextlib.nullcontext):
    """``step(forward, model)`` leaves, bit for bit, the same on a checkpointed model as on a plain one.

    Args:
        model: in training.
        args: with which it is captured.
        step: may return further tensors to compare.
        kept: numbers of the values that are kept.
        repeated: so many values are recomputed, or the comparison would show nothing.
        around: makes the context of the capture.
    """
    twin = copy.deepcopy(model)
    with around():
        graph = capture(model, args)
    assert len(Schedule.of(graph, kept).recomputed) >= repeated
    found = []
    for current, forward in ((model, run(model, graph, kept)), (twin, twin)):
        torch.manual_seed(7)
        returned = step(forward, current)
        found.append([*(returned or ()), *left_by(current), torch.get_rng_state()])
    for ours, plain in zip(*found, strict=True):
        assert torch.equal(ours, plain)
    return graph
