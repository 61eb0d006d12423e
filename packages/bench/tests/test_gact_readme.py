"""GACT's README example, with its imports changed and nothing else, trains a GCN: on Cora where that is at hand."""

import pytest
import torch
import torch.nn.functional as F
from torch_geometric.nn import GCN

from integrations import saved as gact
from integrations.saved import Controller


@pytest.mark.parametrize("level", ["L1", "L2", "L2.2"])
@pytest.mark.parametrize("step_first", [True, False], ids=["step before iterate", "step inside backprop"])
def test_the_example(cora_or_digits, level, step_first):
    """README's text says both: with the step inside of ``backprop``, and between it and ``iterate``."""
    graph = cora_or_digits
    torch.manual_seed(0)
    model = GCN(graph.x.shape[1], 64, 2, graph.classes, dropout=0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    losses = []

    gact.set_optimization_level(level)
    controller = Controller(model)
    controller.install_hook()

    for _ in range(30):

        def backprop():
            model.train()
            output = model(graph.x, graph.edge_index)
            loss = F.cross_entropy(output[graph.train], graph.y[graph.train])
            optimizer.zero_grad()
            loss.backward()
            losses.append(loss.item())
            if not step_first:
                optimizer.step()

        if step_first:
            optimizer.step()
        controller.iterate(backprop)

    controller.uninstall_hook()

    assert len(losses) == 30
    assert losses[-1] < 0.6 * losses[0]
