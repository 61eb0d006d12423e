"""Q-layers under ``torch.fx`` and ``torch.jit.trace``."""

import copy

import pytest
import torch
from torch import nn

from integrations import qmodules

from .nets import normal
from .qnets import step

X = normal(4, 3, 8, 8)


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.GELU(),
        nn.Dropout(0.5),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(36, 4),
    )


@pytest.mark.parametrize("level", ["L2", "L3"])
def test_fx_sees_leaves_as_it_does_of_torch(level):
    """It looked into them: a batch norm failed, and of the others torch's operators were left."""
    model = qmodules.QModule(net(), level)
    traced = torch.fx.symbolic_trace(model)
    plain = torch.fx.symbolic_trace(net())
    assert [node.op for node in traced.graph.nodes] == [node.op for node in plain.graph.nodes]
    assert traced.get_submodule("0") is model[0]
    (expected, _), (output, _) = step(model, X), step(traced, X)
    assert torch.equal(output, expected)
    traced.eval()  # dropout follows
    assert torch.equal(traced(X), model.eval()(X))


def test_fx_and_a_subclass_whose_forward_calls_ours():
    class Twice(qmodules.QLinear):
        def forward(self, input):
            return super().forward(input) * 2

    layer = Twice(4, 4)
    traced = torch.fx.symbolic_trace(nn.Sequential(layer))
    assert torch.equal(traced(normal(2, 4)), layer(normal(2, 4)))


def test_fx_and_a_forward_that_was_replaced():
    layer = qmodules.QLinear(4, 4)
    layer.forward = lambda x, forward=layer.forward: forward(x) * 2
    traced = torch.fx.symbolic_trace(nn.Sequential(layer))
    assert torch.equal(traced(normal(2, 4)), layer(normal(2, 4)))


@pytest.mark.parametrize("register", [nn.Module.register_forward_hook, nn.Module.register_forward_pre_hook])
def test_fx_refuses_hooks_that_it_would_run_twice(register):
    model = qmodules.QModule(net(), "L2")
    register(model[6], lambda module, args, *output: None)
    with pytest.raises(RuntimeError, match=r"Q-layers must have no forward hooks .* got 6 with 1"):
        torch.fx.symbolic_trace(model)


def test_fx_and_a_weight_that_a_hook_computes():
    model = qmodules.QModule(nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(4, 4))), "L2")
    assert torch.equal(torch.fx.symbolic_trace(model)(normal(2, 4)), model(normal(2, 4)))


@pytest.mark.parametrize("level", ["L2", "L3", "L4"])
def test_jit_trace_gets_torchs_layers(level):
    model = net()
    del model[3]
    converted = qmodules.QModule(copy.deepcopy(model), level)
    (expected, gradients), (output, found) = (
        step(torch.jit.trace(module, X, check_trace=False), X) for module in (model, converted)
    )
    assert torch.equal(output, expected)
    assert all(map(torch.equal, gradients, found))
