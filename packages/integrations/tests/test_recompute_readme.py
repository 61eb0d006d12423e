"""The steps of Optimal Gradient Checkpointing's README, with its imports changed: a network, its input, two epochs."""

import networkx
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from integrations.checkpoint import optimal_grad_checkpointing, plan_of

from .nets import normal
from .recompute_nets import Residual


class Network(nn.Module):
    """A small network for images of CIFAR-10's shape."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Residual(3, 8), nn.MaxPool2d(2), Residual(8, 16), nn.MaxPool2d(2), Residual(16, 16))
        self.dropout, self.head = nn.Dropout(0.1), nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.dropout(self.blocks(x).mean((2, 3))))


def batches(count, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        labels = torch.randint(10, (32,), generator=generator)
        images = 0.3 * torch.randn(32, 3, 32, 32, generator=generator)
        yield images + labels[:, None, None, None] / 5 - 1, labels


def test_define_parse_and_train():
    """README: define a model and its inputs; run the solver; train and evaluate for 2 epochs."""
    torch.manual_seed(2020)
    net = Network()
    inp = normal(32, 3, 32, 32)
    run_segment = optimal_grad_checkpointing(net, inp)

    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    losses = []
    for epoch in range(2):
        run_segment.train()
        for images, labels in batches(12, seed=epoch):
            optimizer.zero_grad()
            loss = F.cross_entropy(run_segment(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    net.eval()
    with torch.no_grad():
        [(images, labels)] = batches(1, seed=9)
        accuracy = (net(images).argmax(1) == labels).float().mean()
    assert sum(losses[-4:]) < 0.7 * sum(losses[:4])
    assert accuracy > 0.2  # 0.1 is chance
    assert plan_of(run_segment).cut > 0.3


def test_the_network_itself_stays_plain():
    """As in benchmark.py, which compares the two."""
    net, x = Network(), normal(8, 3, 16, 16)
    run_segment = optimal_grad_checkpointing(net, x)
    assert isinstance(run_segment, Network)
    assert "forward" not in net.__dict__
    assert all(a is b for a, b in zip(run_segment.parameters(), net.parameters(), strict=True))
    assert list(run_segment.state_dict()) == list(net.state_dict())
    gradients = []
    for module in (net, run_segment):
        torch.manual_seed(0)
        net.zero_grad()
        module(x).sum().backward()
        gradients.append([parameter.grad for parameter in net.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


class Identity(nn.Module):
    def forward(self, x):
        return x


class Add(nn.Module):
    def forward(self, inputs):
        return inputs[0] + inputs[1]


class Parsed(nn.Module):
    """A network with a parse_graph of its own, in the README's form, and a forward that nothing can follow."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(6))
        self.add = Add()

    def forward(self, x):
        raise NotImplementedError("run by the graph")

    def parse_graph(self, x):
        graph = networkx.MultiDiGraph()
        graph.add_node(0, cost=x.numel())
        for number, layer in enumerate(self.layers):
            graph.add_node(number + 1, cost=x.numel())
            graph.add_edge(number, number + 1, cost=0, module=layer)
        # Twice the same input: an edge's key tells the two apart.
        order = [(3, graph.add_edge(3, "sum", cost=0, module=Identity())), (6, 0), (3, 1)]
        graph.add_edge(6, "sum", cost=0, module=Identity())
        graph.add_edge(3, "sum", cost=0, module=nn.ReLU())
        graph.nodes["sum"].update(cost=x.numel(), transition=Add3(), transition_input_order=order)
        return graph, 0, "sum"


class Add3(nn.Module):
    def forward(self, inputs):
        return inputs[0] - inputs[1] + 2 * inputs[2]


def test_a_models_own_parse_graph():
    net, x = Parsed(), normal(256, 16)
    with pytest.warns(
        UserWarning,
        match="cannot be captured .NotImplementedError: run by the graph.; the graph that parse_graph returns",
    ):
        run_segment = optimal_grad_checkpointing(net, x)
    assert plan_of(run_segment).segments
    run_segment(x).sum().backward()
    found = [parameter.grad for parameter in net.parameters()]
    net.zero_grad()
    third = net.layers[2](net.layers[1](net.layers[0](x)))
    last = net.layers[5](net.layers[4](net.layers[3](third)))
    (third - last + 2 * third.relu()).sum().backward()
    for ours, parameter in zip(found, net.parameters(), strict=True):
        # The sum's three parts may be added in another order: 256 rows of 16 sums of numbers up to 3.
        torch.testing.assert_close(ours, parameter.grad, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda graph: graph.remove_edge(2, 3), "must be reachable from the source 0"),
        (lambda graph: graph.add_edge("sum", 0, module=Identity()), "must have no cycle"),
        (lambda graph: graph.nodes["sum"].pop("transition"), "'sum' with 3 has none"),
        (lambda graph: graph.nodes["sum"].update(transition_input_order=[(3, 0)]), "must name each of its inputs once"),
        (lambda graph: graph.edges[0, 1, 0].pop("module"), "edge from 0 to 1 must have a module, got None"),
        (lambda graph: graph.add_edge("lost", 4, module=Identity()), "every node but the source must have an input"),
    ],
    ids=["reach", "cycle", "transition", "order", "module", "input"],
)
def test_a_graph_that_cannot_be_run_is_refused(change, message):
    net, x = Parsed(), normal(4, 16)
    graph, source, target = net.parse_graph(x)
    change(graph)
    net.parse_graph = lambda x: (graph, source, target)
    with pytest.raises(ValueError, match=message):
        optimal_grad_checkpointing(net, x)


def test_what_is_no_network_is_refused():
    with pytest.raises(TypeError, match=r"net must be a torch.nn.Module, got builtin"):
        optimal_grad_checkpointing(torch.relu, normal(4))
    net = Parsed()
    net.parse_graph = None
    with pytest.raises(NotImplementedError, match="run by the graph"):
        optimal_grad_checkpointing(net, normal(4, 16))
