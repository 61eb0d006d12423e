"""Subgraphs to train on, evaluation in blocks, and graphs whose nodes have several classes."""

import dataclasses

import pytest
import torch

from bench.errors import BenchError
from bench.models.data.graph import Walks, evaluated, induced
from bench.models.graph_networks import MODELS, Recipe
from bench.suites.gnn.training import Run, train_in_turn
from integrations import compression

SAMPLE = Recipe(sample=600, hidden=32)


@pytest.fixture(scope="module")
def several(graph):
    """The digits with one to two of three classes: even, odd, below five."""
    return dataclasses.replace(graph, y=torch.stack([graph.y % 2 == 0, graph.y % 2 == 1, graph.y < 5], 1).float())


# ---- subgraphs ----


def test_a_subgraph_is_the_nodes_of_walks_and_all_edges_between_them(graph):
    torch.manual_seed(0)
    part = Walks(graph, 600).draw()
    assert 200 < len(part.x) <= 600
    assert part.train.sum() >= 1
    assert len(part.y) == len(part.train) == len(part.x)
    places = [(graph.x == row).all(1).nonzero()[0, 0] for row in part.x]
    inside = torch.zeros(len(graph.x), dtype=torch.bool)
    inside[places] = True
    row, column = graph.edge_index
    assert part.edge_index.shape[1] == (inside[row] & inside[column]).sum()
    back = torch.stack(places)[part.edge_index]
    pairs = set(map(tuple, graph.edge_index.T.tolist()))
    assert all(tuple(pair) in pairs for pair in back.T.tolist())


def test_walks_follow_edges():
    """On a path of nodes whose only training node is the first, none is further than two steps from it."""
    from bench.models.data.graph import Graph

    ends = torch.arange(9)
    edges = torch.cat([torch.stack([ends, ends + 1]), torch.stack([ends + 1, ends])], 1)
    mask = torch.arange(11) == 0  # and a node without neighbours
    graph = Graph("path", "made", torch.arange(11.0)[:, None], edges, torch.zeros(11).long(), mask, ~mask, ~mask)
    torch.manual_seed(0)
    seen = {value for _ in range(20) for value in Walks(graph, 9).draw().x.flatten().tolist()}
    assert seen == {0.0, 1.0, 2.0}
    lonely = dataclasses.replace(graph, train=torch.arange(11) == 10)
    assert Walks(lonely, 9).draw().x.flatten().tolist() == [10.0]


@pytest.mark.parametrize("nodes", [2, 1797])
def test_a_subgraph_that_is_none(graph, nodes):
    with pytest.raises(BenchError, match=r"--sample must be from 3 nodes to fewer than digits's 1,797, got"):
        Walks(graph, nodes)


@pytest.mark.parametrize("level", ["L1", "L2"])
@pytest.mark.parametrize("model", MODELS)
def test_runs_on_subgraphs_are_paired_and_learn(model, level, graph):
    curves = train_in_turn(model, [None, level], 0, graph, 2, SAMPLE)
    plain, compressed = curves
    assert not plain.failure
    assert not compressed.failure
    assert compressed.losses[-1] < 1.05 * plain.losses[0]
    # Three steps an epoch; the same subgraphs, so that losses go together: rounding's part is less than the steps'.
    assert abs(compressed.losses[-1] - plain.losses[-1]) < 0.5 * abs(plain.losses[0])


def test_an_adaptive_level_adapts_on_subgraphs(graph):
    run = Run("gcn", "L2", 0, graph, SAMPLE)
    run.train(2)
    assert compression(run.network).plan is not None
    assert compression(run.network).level.adapt_interval == 20


# ---- evaluation in blocks ----


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("norm", ["none", "batch"])
def test_blocks_give_the_logits_of_the_whole_graph(model, norm, graph):
    torch.manual_seed(0)
    network = MODELS[model](64, 10, dataclasses.replace(SAMPLE, norm=norm)).eval().double()
    doubled = dataclasses.replace(graph, x=graph.x.double())
    whole = evaluated(network, doubled)
    for block in (3000, 9000):  # edges
        # Sums in another order, in float64.
        torch.testing.assert_close(evaluated(network, doubled, block), whole, rtol=1e-9, atol=1e-9)
    network.train()
    assert all(getattr(module, "normalize", True) for module in network.convolutions if model in ("gcn", "gcnii"))


def test_a_node_with_more_edges_than_a_block_is_one_of_its_own(graph):
    torch.manual_seed(0)
    network = MODELS["gcn"](64, 10, Recipe(hidden=8, sample=600)).eval()
    few = induced(graph, torch.arange(60))
    torch.testing.assert_close(evaluated(network, few, 1), evaluated(network, few))  # float32, torch's own bounds


# ---- several classes ----


def test_micro_f1_by_hand(several):
    graph = dataclasses.replace(several, y=torch.tensor([[1.0, 0], [1, 1], [0, 1]]))
    logits = torch.tensor([[2.0, 1], [3, -1], [9, 9]])
    first = torch.tensor([True, True, False])
    # Found: 3 of which 2 are right; there are 3: 2 * 2 / (3 + 3).
    assert graph.score(logits, first) == pytest.approx(100 * 4 / 6)
    assert graph.score(-torch.ones(3, 2), first) == 0.0
    assert graph.classes == 2
    assert graph.measure == "micro-F1"


def test_the_loss_is_that_of_each_class(several):
    logits = torch.randn(len(several.x), 3, generator=torch.Generator().manual_seed(0))
    chance = logits.sigmoid()
    each = -(several.y * chance.log() + (1 - several.y) * (1 - chance).log())[several.train].mean()
    torch.testing.assert_close(several.loss(logits), each)  # torch's own bounds: both are float32


@pytest.mark.parametrize("recipe", [Recipe(hidden=64), Recipe(hidden=64, sample=600)], ids=["whole", "subgraphs"])
def test_several_classes_can_be_learned(several, recipe):
    run = Run("sage", "L1", 0, several, recipe)
    run.train(30 if recipe.sample is None else 12)
    assert run.curve.losses[-1] < 0.9 * run.curve.losses[0]
    assert run.curve.test_accuracy > 75  # who says all of each has 67


def test_a_part_of_a_graph_has_the_labels_of_its_nodes(several):
    part = induced(several, torch.tensor([3, 5]))
    assert torch.equal(part.y, several.y[[3, 5]])
    assert part.several
