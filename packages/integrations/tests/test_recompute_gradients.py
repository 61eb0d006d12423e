"""A checkpointed step is the plain one, bit for bit, whatever is kept."""

import random

import pytest
import torch
from torch import nn

from integrations.checkpoint.capture import capture
from integrations.checkpoint.schedule import Schedule

from .nets import Net, normal
from .recompute_nets import NETS, net
from .recompute_reference import assert_as_plain, random_kept


@pytest.mark.filterwarnings("error::UserWarning")  # none of these forwards leaves its graph
@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("share", [0.0, 0.1, 0.4, 0.7, 0.9, 1.0])
def test_gradients_buffers_and_generator(name, share):
    model, args, kwargs = net(name)
    graph = capture(model, args, kwargs)
    assert not graph.note
    kept = random_kept(graph, share)
    assert Schedule.of(graph, kept).recomputed or share > 0.5
    assert_as_plain(model, graph, kept, args, kwargs, steps=2)


def random_net(seed):
    """Operators at random, in place and out of place, on what is there."""

    def forward(model, x):
        draw = random.Random(seed).randrange
        known = [x * model.weight]
        for _ in range(12):
            one, other = known[draw(len(known))], known[draw(len(known))]
            kind = draw(8)
            if kind == 0:
                known.append(one + other * 0.5)
            elif kind == 1:
                known.append(torch.tanh(one) @ model.square)
            elif kind == 2:
                known.append((one.t() * 0.3).t().clone().mul_(other.detach()).sigmoid_())
            elif kind == 3:
                known.append(torch.cat([one[:2], other[2:]]))
            elif kind == 4:
                known.append(nn.functional.dropout(one, 0.3))
            elif kind == 5:
                known.append((one * 1.5).add_(other).relu_())
            elif kind == 6:
                known.append(nn.functional.layer_norm(one, (6,)))
            else:
                known += [part.repeat_interleave(2, 1) for part in (one * 2).chunk(2, 1)]
        return sum(known).sin()

    return Net(forward, weight=normal(6, seed=seed), square=normal(6, 6, seed=seed + 1)).train(), (normal(4, 6),)


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("seed", range(12))
def test_random_nets_with_random_kept_sets(seed):
    model, args = random_net(seed)
    graph = capture(model, args)
    assert not graph.note
    for number in range(4):
        assert_as_plain(model, graph, random_kept(graph, number / 4, seed=number), args, {})
