"""The generated graph of ogbn-arxiv's size."""

import pytest
import torch

from bench.models.data import graphs
from bench.models.graph_networks import Recipe
from bench.suites.gnn.training import Run


@pytest.fixture(scope="module")
def arxiv():
    return graphs.load("generated-arxiv")


@pytest.fixture(scope="module")
def small():
    return graphs.graph(nodes=3000, edges=20_000)


def test_it_has_ogbn_arxiv_s_sizes(arxiv):
    assert arxiv.x.shape == (169_343, 128)
    assert arxiv.edge_index.shape == (2, 2 * 1_166_243)
    assert arxiv.classes == 40
    assert [int(mask.sum()) for mask in (arxiv.train, arxiv.validation, arxiv.test)] == [90_941, 29_799, 48_603]
    assert not (arxiv.train & arxiv.validation | arxiv.train & arxiv.test | arxiv.validation & arxiv.test).any()
    assert str(arxiv).startswith("generated-arxiv (169,343 nodes")
    assert "generated, of ogbn-arxiv's size" in str(arxiv)


def test_edges_are_distinct_pairs_both_ways_without_loops(arxiv):
    row, column = arxiv.edge_index
    assert not (row == column).any()
    there, back = row * len(arxiv.x) + column, column * len(arxiv.x) + row
    assert len(there.unique()) == len(there)
    assert torch.equal(there.sort().values, back.sort().values)


def test_degrees_follow_a_power_law_and_edges_the_classes(arxiv):
    degrees = arxiv.edge_index[0].bincount(minlength=len(arxiv.x)).sort(descending=True).values.double()
    # Of weights k**(-1 / 1.5), sorted, the hundred largest together have this share, and a tenth of the nodes that;
    # a third of a factor allows for pairs that were drawn twice, which are mostly of the largest.
    weights = torch.arange(1, len(arxiv.x) + 1).double() ** (-2 / 3)
    for count in (100, len(arxiv.x) // 10):
        share = degrees[:count].sum() / degrees.sum()
        assert 2 / 3 < share / (weights[:count].sum() / weights.sum()) < 3 / 2
    assert degrees[0] > 200 * degrees.median()
    same = (arxiv.y[arxiv.edge_index[0]] == arxiv.y[arxiv.edge_index[1]]).double().mean()
    assert 0.6 < same < 0.75  # two thirds, and some of the others by chance; pairs that were drawn twice count once


def test_it_is_always_the_same(small):
    again, other = graphs.graph(nodes=3000, edges=20_000), graphs.graph(nodes=3000, edges=20_000, seed=1)
    for name in ("x", "edge_index", "y", "train", "validation", "test"):
        assert torch.equal(getattr(small, name), getattr(again, name))
    assert not torch.equal(small.edge_index, other.edge_index)


def test_it_can_be_learned_and_edges_help(small):
    largest = 100 * (small.y[small.test].bincount().max() / small.test.sum())
    run = Run("gcn", "L1", 0, small, Recipe(hidden=32))
    run.train(15)
    assert run.curve.test_accuracy > 2 * largest
