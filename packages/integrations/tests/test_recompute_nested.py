"""Nested checkpoints: what a segment makes again is held only in part, and the rest is made once more."""

import pytest
import torch
from torch import nn

from integrations.checkpoint.capture import capture
from integrations.checkpoint.schedule import Schedule

from .nets import normal
from .recompute_nets import NETS, net, random_net
from .recompute_reference import assert_as_plain, counted_peak, random_kept, simulated_peak


@pytest.mark.filterwarnings("error::UserWarning")  # none of these forwards leaves its graph
@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("share", [0.0, 0.2, 0.5])
def test_gradients_buffers_and_generator(name, share):
    model, args, kwargs = net(name)
    graph = capture(model, args, kwargs)
    for seed, of_held in enumerate((0.0, 0.3, 0.6)):
        kept, held = random_kept(graph, share, seed), random_kept(graph, of_held, seed + 100)
        assert Schedule.of(graph, kept, held).inner or share
        assert_as_plain(model, graph, kept, args, kwargs, steps=2, held=held)


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("seed", range(12))
def test_random_nets_with_random_ranks(seed):
    model, args = random_net(seed)
    graph = capture(model, args)
    for number in range(4):
        kept, held = random_kept(graph, number / 8, seed=number), random_kept(graph, 0.4, seed=number + 100)
        assert_as_plain(model, graph, kept, args, {}, held=held)


def wide():
    """Where activations are the most of a step."""
    torch.manual_seed(0)
    layers = (layer for _ in range(8) for layer in (nn.Linear(16, 16), nn.ReLU(inplace=True), nn.Tanh()))
    return nn.Sequential(*layers).train(), (normal(512, 16),)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("made", [wide, lambda: net("resnet")[:2], lambda: net("densenet")[:2]])
def test_the_peak_is_the_one_that_was_foretold(made, share):
    model, args = made()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # the generator's state is some bytes, too
    graph = capture(model, args)
    for seed in range(4):
        kept, held = random_kept(graph, share, seed), random_kept(graph, 0.4, seed + 100)
        assert Schedule.of(graph, kept, held).inner
        model.zero_grad()
        counted = counted_peak(model, graph, kept, *args, held=held)
        # A repeated BatchNorm updates copies of its statistics, float32, of which the graph has nothing.
        widest = max(
            (module.num_features for module in model.modules() if isinstance(module, nn.BatchNorm2d)), default=0
        )
        assert 0 <= counted - simulated_peak(graph, kept, held) <= 2 * 4 * widest
