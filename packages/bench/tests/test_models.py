import pytest
import torch

from bench.models import DROPOUT, HIDDEN, LAYERS, MODELS


@pytest.mark.parametrize("model", MODELS)
def test_three_layers_of_256(model, graph):
    network = MODELS[model](64, 10)
    assert len(network.convolutions) == LAYERS == 3
    assert (HIDDEN, DROPOUT) == (256, 0.5)
    widths = []
    for convolution in network.convolutions:
        convolution.register_forward_hook(lambda module, args, output: widths.append(output.shape[1]))
    assert network(graph.x, graph.edge_index).shape == (1797, 10)
    assert widths == [256, 256, 10]


@pytest.mark.parametrize("model", MODELS)
def test_dropout_only_while_training(model, graph):
    network = MODELS[model](64, 10)
    run = lambda: network(graph.x, graph.edge_index)  # noqa: E731
    assert not torch.equal(run(), run())
    network.eval()
    assert torch.equal(run(), run())
