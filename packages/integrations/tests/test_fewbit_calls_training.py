"""Calls of modules in ``eval()`` while the model around them is in training: torch's own."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from integrations import fewbit

from .fewbit_nets import X, equal, step
from .test_fewbit_calls import Calling

PARTS = {
    "a converted layer": nn.GELU,
    "a few-bit layer of one's own": lambda: fewbit.GELU(bits=8),
    "a call": lambda: Calling(F.gelu),
    "a layer made in the call": lambda: Calling(lambda x: nn.GELU()(x)),
    "torch's own": lambda: nn.TransformerEncoderLayer(32, 2, 32, 0.0, "gelu"),
}


def nets(make):
    """A net with a part in training and one in ``eval()``, and the same without a conversion of the latter."""
    found = []
    for skip in ((), "1"):
        torch.manual_seed(0)
        net = fewbit.convert(nn.Sequential(Calling(F.silu), make()), bits=1, skip=skip)
        net[1].eval()
        found.append(net)
    return found


@pytest.mark.parametrize("make", PARTS.values(), ids=PARTS.keys())
def test_the_module_that_makes_a_call_decides(make):
    net, exact = nets(make)
    assert equal(step(net), step(exact))
    assert fewbit.summary(net).calls == {"0": ("silu",)}


def test_a_layer_of_nobodys_goes_by_the_module_that_calls_it():
    """``model.eval()`` and ``model.train()`` do not reach it."""
    loose = nn.GELU().eval()
    net = fewbit.convert(Calling(lambda x: loose(x)), bits=1)
    assert equal(step(net), step(fewbit.convert(Calling(F.gelu), bits=1)))


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_computes_again_in_the_mode_of_its_forward(reentrant):
    def gradient(now):
        torch.manual_seed(0)
        parts = nn.Sequential(Calling(F.gelu), Calling(F.gelu))
        parts[1].eval()
        net = Calling(lambda x: checkpoint(parts, x, use_reentrant=reentrant))
        net.parts = parts
        x = X.clone().requires_grad_()
        loss = fewbit.convert(net, bits=1)(x).square().sum()
        if now is not None:
            net.train(now)
        loss.backward()
        return x.grad

    expected = gradient(None)
    assert torch.equal(gradient(False), expected)
    assert torch.equal(gradient(True), expected)


@pytest.mark.parametrize("make", [PARTS["a converted layer"], PARTS["a call"]])
def test_compiled(make, fresh_compiler):
    """Code that was compiled in training is not used in ``eval()``, nor the other way round."""
    net, exact = nets(make)
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    for training in (True, False, True):
        net[1].train(training)
        assert equal(step(compiled), step(net))
        assert equal(step(net), step(exact)) is (not training)
