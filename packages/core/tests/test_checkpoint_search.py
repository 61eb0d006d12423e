"""``checkpoint_segments``: against every set that could be kept, and on graphs as large as networks."""

import random

import pytest

from actcore import checkpoint_segments

from .checkpoint_graphs import cell_graph, dense_graph, residual_graph, small_graph
from .checkpoint_oracle import least_total, pieces, total

NETWORKS = {
    "ResNet-50": lambda: residual_graph((3, 4, 6, 3)),
    "ResNet-152": lambda: residual_graph((3, 8, 36, 3)),
    "DenseNet-121": lambda: dense_graph((6, 12, 24, 16)),
    "DenseNet-201": lambda: dense_graph((6, 12, 48, 32)),
}


def require_consistent(found, nbytes, edges):
    assert found.total == total(nbytes, edges, found.kept)
    assert found.kept_bytes == sum(size for size, kept in zip(nbytes, found.kept, strict=True) if kept)
    assert list(found.segments) == pieces(found.kept, edges)
    assert found.lower_bound <= found.total


def test_the_oracle_by_hand():
    nbytes, edges = [0, 3, 5, 2, 0], [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert total(nbytes, edges, [True, False, True, False, True]) == 5 + 3
    assert total(nbytes, edges, [True, False, False, True, True]) == 2 + 8
    assert least_total(nbytes, edges) == 3 + 5  # the middle is kept


@pytest.mark.parametrize("block", range(6))
def test_300_small_graphs_against_every_kept_set(block):
    for seed in range(50 * block, 50 * block + 50):
        _, nbytes, edges = small_graph(seed)
        found = checkpoint_segments(nbytes, edges)
        require_consistent(found, nbytes, edges)
        assert found.total == found.lower_bound == least_total(nbytes, edges), f"small_graph({seed})"
        assert found.gap == 0.0


@pytest.mark.parametrize("network", NETWORKS)
def test_networks_are_proven_optimal(network):
    nbytes, edges = NETWORKS[network]()
    found = checkpoint_segments(nbytes, edges)
    require_consistent(found, nbytes, edges)
    assert found.gap == 0.0


# What the original predicts on its own graphs of these networks, with one tensor at each end of a segment.
@pytest.mark.parametrize(
    ("graph", "ratio"),
    [(residual_graph((3, 4, 6, 3)), 0.288), (dense_graph((6, 12, 24, 16)), 0.182), (cell_graph(), 0.157)],
)
def test_the_share_of_the_originals_graphs(graph, ratio):
    nbytes, edges = graph
    found = checkpoint_segments(nbytes, edges)
    require_consistent(found, nbytes, edges)
    assert found.total <= ratio * sum(nbytes)


def test_a_segment_may_have_several_boundary_tensors():
    # No tensor alone parts the graph: the cheap 3 and 4 do together.
    nbytes = [0, 9, 9, 1, 1, 9, 9, 0]
    edges = [(0, 1), (0, 2), (1, 2), (1, 3), (2, 4), (3, 5), (4, 6), (5, 6), (5, 7), (6, 7)]
    found = checkpoint_segments(nbytes, edges)
    assert found.kept == (True, False, False, True, True, False, False, True)
    assert found.segments == ((1, 2), (5, 6))
    assert found.total == found.lower_bound == 20


@pytest.mark.parametrize("count", [2, 12, 60])
def test_a_dense_graph_does_not_crash(count):
    # The original raised AttributeError where no division of the graph was possible.
    nbytes = [0, *range(1, count), 0]
    edges = [(a, b) for b in range(count + 1) for a in range(b)]
    found = checkpoint_segments(nbytes, edges)
    require_consistent(found, nbytes, edges)
    # Whatever is not kept is one segment: each choice adds up to the same.
    assert found.total == sum(nbytes)
    if count <= 12:  # more are not all open at once in the search, and the bound is weak
        assert found.gap == 0.0


@pytest.mark.parametrize(
    ("nbytes", "edges", "best"),
    [
        ([], [], 0),
        ([7], [], 7),
        ([0], [], 0),
        ([0, 0, 0], [(0, 1), (1, 2)], 0),
        ([5, 0, 5], [(0, 1), (1, 2)], 5),
        ([3, 4], [(0, 1)], 7),
        ([2, 3, 4], [], 4),
        ([0, 6, 0], [(0, 1), (0, 1), (1, 2)], 6),
        ([1 << 54, 1 << 53], [], 1 << 54),
    ],
)
def test_graphs_of_next_to_nothing(nbytes, edges, best):
    found = checkpoint_segments(nbytes, edges)
    require_consistent(found, nbytes, edges)
    assert found.total == found.lower_bound == best


def test_few_steps_still_give_an_answer_and_an_honest_bound():
    nbytes, edges = residual_graph((3, 4, 6, 3))
    best = checkpoint_segments(nbytes, edges)
    for max_steps in (0, 1, 1000, 10_000):
        found = checkpoint_segments(nbytes, edges, max_steps=max_steps)
        require_consistent(found, nbytes, edges)
        assert found.lower_bound <= best.total <= found.total


def test_wide_graphs_have_an_honest_bound():
    draw = random.Random(0)
    for _ in range(5):
        count = 80
        nbytes = [draw.randint(1, 50) for _ in range(count)]
        edges = [(draw.randrange(b), b) for b in range(1, count) for _ in range(3)]
        found = checkpoint_segments(nbytes, edges, max_steps=300_000)
        require_consistent(found, nbytes, edges)
        assert found.total < sum(nbytes)


def test_the_same_graph_gives_the_same_answer():
    nbytes, edges = cell_graph(cells=6)
    first, second = (checkpoint_segments(nbytes, edges, max_steps=500_000) for _ in range(2))
    assert first == second
    assert checkpoint_segments(nbytes, [(b, a) for a, b in edges], max_steps=500_000) == first
