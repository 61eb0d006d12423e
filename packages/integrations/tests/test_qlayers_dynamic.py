"""Compiled Q-layers whose inputs change their size: as many graphs as torch's layers have."""

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from integrations import qmodules

from .nets import EIGHT_BITS, normal

LAYERS = [
    nn.Conv2d(3, 4, 3),
    nn.ConvTranspose2d(3, 4, 3),
    nn.Linear(16, 4),
    nn.BatchNorm2d(3),
    nn.BatchNorm2d(3, track_running_stats=False),
    nn.LayerNorm(16),
    nn.GroupNorm(1, 3),
    nn.RMSNorm(16),
    nn.MaxPool2d(2),
]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_a_size_that_changes_is_compiled_once_more_and_then_no_more(layer):
    """A graph for the first size and one for all others: batch normalisation failed at the second size, and others
    compiled each size anew until the compiler gave up."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(qmodules.QModule(nn.Sequential(layer), "L3"), backend=counter, fullgraph=True)
    for samples in (8, 6, 5, 9):
        compiled(normal(samples, 3, 16, 16).requires_grad_()).square().sum().backward()
    assert counter.frame_count == 2


def test_batch_norm_of_any_size_is_torchs():
    plain = nn.BatchNorm2d(3)
    layer = qmodules.QModule(nn.Sequential(nn.BatchNorm2d(3)), "L2", bits=8)
    compiled = torch.compile(layer, backend="aot_eager", dynamic=True)
    for samples, size in ((8, 16), (6, 16), (5, 12)):
        x = normal(samples, 3, size, size, seed=size)
        inputs = [x.clone().requires_grad_() for _ in range(2)]
        expected, output = plain(inputs[0]), compiled(inputs[1])
        assert torch.equal(output, expected)
        for found in (expected, output):
            (found * normal(*found.shape, seed=9)).sum().backward()
        error = (inputs[1].grad - inputs[0].grad).norm() / inputs[0].grad.norm()
        assert error <= EIGHT_BITS
    assert torch.equal(layer[0].running_mean, plain.running_mean)
    assert torch.equal(layer[0].running_var, plain.running_var)
    assert int(layer[0].num_batches_tracked) == 3
