"""A checkpointed step is the plain one, bit for bit, whatever is kept."""

import pytest

from integrations.capture.graphs.schedule import Schedule
from integrations.checkpoint import capture

from .recompute_nets import NETS, net, random_net
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


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("seed", range(12))
def test_random_nets_with_random_kept_sets(seed):
    model, args = random_net(seed)
    graph = capture(model, args)
    assert not graph.note
    for number in range(4):
        assert_as_plain(model, graph, random_kept(graph, number / 4, seed=number), args, {})
