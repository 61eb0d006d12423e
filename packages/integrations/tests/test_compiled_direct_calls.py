"""Inductor's code for a CPU calls the codecs without torch's dispatcher, and stores the same bits."""

import pytest
import torch
from torch import nn
from torch._functorch import config as functorch_config
from torch.profiler import ProfilerActivity, profile

import integrations
from actcore.replay import KERNELS
from integrations.runtime.compiled import direct_calls

from .regions import X

pytestmark = pytest.mark.usefixtures("fresh_compiler", "quick_kernels")


def net():
    """Stores values in 4 and 8 bits, signs, and a mask."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.ReLU(), nn.LayerNorm(64)).train()


def step():
    """The codecs that the dispatcher calls in a step of code from inductor, and the step's gradients by name."""
    model = net()
    integrations.compress_model(model, "L1")
    forward = torch.compile(model)
    # Graphs are compiled anew. Their kernels in C++ are the same, and are compiled once.
    with torch._inductor.config.patch(fx_graph_cache=False), functorch_config.patch(enable_autograd_cache=False):
        forward(X).square().mean().backward()
    model.zero_grad()
    with profile(activities=[ProfilerActivity.CPU]) as calls:
        forward(X).square().mean().backward()
    called = {event.key.removeprefix("actcore::") for event in calls.key_averages() if event.key.startswith("actcore")}
    return called - {"region_stream"}, {name: parameter.grad for name, parameter in model.named_parameters()}


def test_inductor_calls_them_directly(monkeypatch):
    called, found = step()
    assert bool(called) is not bool(KERNELS)  # torch 2.14 and later can call the CPU's operators without its dispatcher
    torch._dynamo.reset()
    writers = direct_calls.custom_extern_kernel_codegen()
    for operator in direct_calls._FUNCTIONS:
        monkeypatch.delitem(writers, operator, raising=False)
    monkeypatch.setattr(direct_calls, "custom_extern_kernel_codegen", lambda: None)
    called, expected = step()
    assert called == {"group_affine_compress", "group_affine_decompress", "positive_mask", "bit_mask_decompress"}
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
