import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bench.errors import BenchError
from bench.models.graph_networks import ALPHA, DROPOUT, HIDDEN, LAYERS, MODELS, THETA, Recipe
from bench.suites.gnn.training import Run

SHALLOW = ("gcn", "sage", "gat")


def widths_of(network, graph):
    widths = []
    for convolution in network.convolutions:
        convolution.register_forward_hook(lambda module, args, output: widths.append(output.shape[1]))
    assert network(graph.x, graph.edge_index).shape == (1797, 10)
    return widths


@pytest.mark.parametrize("model", SHALLOW)
def test_three_layers_of_256(model, graph):
    network = MODELS[model](64, 10)
    assert len(network.convolutions) == LAYERS == 3
    assert (HIDDEN, DROPOUT) == (256, 0.5)
    assert widths_of(network, graph) == [256, 256, 10]


@pytest.mark.parametrize("model", MODELS)
def test_dropout_only_while_training(model, graph):
    network = MODELS[model](64, 10)
    run = lambda: network(graph.x, graph.edge_index)  # noqa: E731
    assert not torch.equal(run(), run())
    network.eval()
    assert torch.equal(run(), run())


def test_gcnii_is_the_paper_s(graph):
    """Equation 5 of Chen et al. (ICML 2020), in float64, with the whole matrix of the graph."""
    torch.manual_seed(0)
    network = MODELS["gcnii"](64, 10, Recipe(layers=4)).double().eval()
    x, count = graph.x.double(), len(graph.x)
    adjacency = torch.eye(count, dtype=torch.float64)
    adjacency[graph.edge_index[1], graph.edge_index[0]] = 1
    root = adjacency.sum(1).rsqrt()
    propagate = root[:, None] * adjacency * root
    state = first = F.relu(F.linear(x, network.first.weight, network.first.bias))
    for place, convolution in enumerate(network.convolutions):
        beta = math.log(THETA / (place + 1) + 1)
        mixed = (1 - ALPHA) * propagate @ state + ALPHA * first
        state = F.relu((1 - beta) * mixed + beta * mixed @ convolution.weight1)
    expected = F.linear(state, network.last.weight, network.last.bias)
    # Sums of a few hundred terms in another order, each rounded to 2**-53 of itself, four times.
    torch.testing.assert_close(network(x, graph.edge_index), expected, rtol=1e-10, atol=1e-10)


def test_gcnii_has_sixteen_layers_of_64_that_decay_faster(graph):
    network = MODELS["gcnii"](64, 10)
    assert widths_of(network, graph) == [64] * 16
    dense, convolutions = network.parameter_groups()
    assert (dense["weight_decay"], convolutions["weight_decay"]) == (5e-4, 0.01)
    assert len(dense["params"]) + len(convolutions["params"]) == len(list(network.parameters())) == 20


def test_gcnii_learns(graph):
    run = Run("gcnii", "L1", 0, graph, Recipe(layers=4))
    run.train(60)
    assert run.curve.losses[-1] < 0.6 * run.curve.losses[0]
    assert run.curve.test_accuracy > 70


@pytest.mark.parametrize("model", MODELS)
def test_gact_s_recipe(model, graph):
    network = MODELS[model](64, 10, Recipe(norm="batch", heads=3))
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm1d)]
    assert len(norms) == (16 if model == "gcnii" else 2)
    # 256 features are 3 heads of 85.
    assert widths_of(network, graph) == {"gcnii": [64] * 16, "gat": [255, 255, 10]}.get(model, [256, 256, 10])


def test_widths_and_depths_can_be_chosen(graph):
    for model in SHALLOW:
        assert widths_of(MODELS[model](64, 10, Recipe(hidden=32, layers=4)), graph) == [32, 32, 32, 10]
    assert widths_of(MODELS["gcnii"](64, 10, Recipe(hidden=32, layers=4)), graph) == [32] * 4
    assert widths_of(MODELS["gcn"](64, 10, Recipe(layers=1)), graph) == [10]


def test_more_heads_than_features():
    with pytest.raises(BenchError, match="--heads must be at most the hidden features, 8, got 9"):
        MODELS["gat"](64, 10, Recipe(hidden=8, heads=9))


def test_every_setting_is_said_in_words():
    changed = Recipe(hidden=32, layers=4, heads=3, norm="batch", adapt_interval=7, sample=300)
    plain, words = Recipe().words(), changed.words()
    for field in dataclasses.fields(Recipe):
        one = dataclasses.replace(Recipe(), **{field.name: getattr(changed, field.name)})
        assert one.words() != plain, f"a file with another {field.name} would be taken up"
    assert words["sample"] == "300 nodes"
