"""Layers that store less themselves are planned for as what they are."""

import copy

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from integrations import fewbit, qmodules
from integrations.checkpoint import apply, capture, plan, plan_of

from .nets import normal
from .recompute_nets import Residual
from .recompute_reference import outcome


def layers():
    block = (nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 32), nn.LayerNorm(32), nn.SiLU(), nn.Linear(32, 32), nn.ReLU())
    return nn.Sequential(nn.Linear(32, 32), *block, *copy.deepcopy(nn.Sequential(*block)), nn.Linear(32, 4)).train()


@pytest.mark.parametrize("options", [{}, {"linear": 0.3}], ids=["activations", "sketches"])
def test_few_bit_layers(options, recwarn):
    model, x = fewbit.convert(layers(), **options), normal(512, 32)
    twin = copy.deepcopy(model)
    made = plan(model, x)
    assert not made.graph.note
    assert {"actcore.stepwise.default", "actcore.relu_mask.default"} <= {op.name for op in made.graph.ops}
    real = capture(model, x, real=True)
    assert [(op.name, op.shapes) for op in made.graph.ops] == [(op.name, op.shapes) for op in real.ops]
    apply(model, made)
    for one, other in zip(outcome(model, model, (x,), {}), outcome(twin, twin, (x,), {}), strict=True):
        assert type(one) is type(other)
        assert torch.equal(one, other)
    assert plan_of(model) is made
    assert made.segments
    assert not recwarn.list


def test_a_layer_that_counts_its_calls_is_not_repeated():
    model = nn.Sequential(fewbit.LinearGRP(32, 32, proj_dim_ratio=0.3, seed=3), nn.Tanh()).train()
    graph = capture(model, normal(512, 32))
    [counter] = [op for op in graph.ops if op.name == "actcore.next_stream.default"]
    assert not counter.repeatable


def test_q_layers():
    model, x = nn.Sequential(Residual(3, 8), nn.MaxPool2d(2), Residual(8, 8)).train(), normal(8, 3, 16, 16)
    qmodules.QModule(model, level="L1")
    made = plan(model, x)
    names = [op.name for op in made.graph.ops]
    assert "actcore.group_affine_compress.default" in names
    assert names == [op.name for op in capture(model, x, real=True).ops]
    apply(model, made)
    model(x).sum().backward()
    assert plan_of(model) is made


def test_constants_that_layers_keep_are_not_the_captures():
    """A fake tensor that a table was made as would be met by every later forward."""
    with FakeTensorMode() as mode:
        x = mode.from_tensor(normal(8, 32)).requires_grad_()
        found = fewbit.functional.softplus(x, beta=0.7351, bits=4)
        found.sum().backward()
        assert isinstance(x.grad, FakeTensor)
    capture(fewbit.convert(nn.Sequential(nn.Linear(32, 32), nn.Softplus(0.8311))).train(), normal(8, 32))
    for beta in (0.7351, 0.8311):
        x = normal(8, 32).requires_grad_()
        fewbit.functional.softplus(x, beta=beta, bits=4).sum().backward()
        assert not isinstance(x.grad, FakeTensor)
