"""torch.compile on a GPU: with inductor, and with CUDA graphs that it captures by itself (``reduce-overhead``)."""

import copy

import pytest
import torch
from torch import nn

import actcore
import integrations

from .nets import EIGHT_BITS, normal, relative_error
from .regions import make_report, trained

if actcore.build_info()["cuda_missing"]:
    pytest.skip(f"no CUDA operators: {actcore.build_info()['cuda_missing']}", allow_module_level=True)
if not torch.cuda.is_available():
    pytest.skip("torch finds no GPU", allow_module_level=True)

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("fresh_compiler")]
MODES = ("default", "reduce-overhead")


@pytest.fixture
def net():
    torch.manual_seed(0)
    layers = (nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256))
    return nn.Sequential(*layers).cuda()


@pytest.fixture
def x():
    return normal(512, 256).cuda()


def steps(model, function, x, count):
    """Gradients of several steps; a graph that is replayed owns its results, so they are copied."""
    found = []
    for _ in range(count):
        torch.compiler.cudagraph_mark_step_begin()
        found.append(trained(model, function, x))
    return found


@pytest.mark.parametrize("mode", MODES)
def test_the_gradient_is_that_of_eight_bits(net, x, mode):
    plain = trained(net, net, x)
    model = integrations.compress_model(copy.deepcopy(net), "L1.1")
    found = steps(model, torch.compile(model, mode=mode), x, 5)
    # Of the first, of what is recorded, and of replays.
    for gradients in found:
        assert 0 < relative_error(plain, gradients) < EIGHT_BITS
    assert make_report(model).ratio > 3


@pytest.mark.parametrize("mode", MODES)
def test_every_step_rounds_anew(net, x, mode):
    model = integrations.compress_model(net, "L1.2")
    found = steps(model, torch.compile(model, mode=mode), x, 6)
    weights = [gradients["3.weight"] for gradients in found]
    for place, one in enumerate(weights):
        assert not any(torch.equal(one, other) for other in weights[place + 1 :])


def test_less_is_held_between_forward_and_backward(net):
    """At 8 bits a quarter of float32's bytes is stored, and bounds; half leaves room for what a region keeps. Memory of
    CUDA graphs is in pools of their own, which are as large between replays, so this is of inductor alone."""
    x, held = normal(16384, 256).cuda(), {}
    for level in ("plain", "L1.1"):
        model = copy.deepcopy(net) if level == "plain" else integrations.compress_model(copy.deepcopy(net), level)
        function = torch.compile(model)
        trained(model, function, x)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        loss = function(x).square().mean()
        held[level] = torch.cuda.memory_allocated() - before
        del loss
    assert held["L1.1"] < held["plain"] / 2
