"""Where a compiled region stores and restores: both graphs stay in order, whatever is passed on as it is."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Graph

import integrations
from integrations.runtime.compiled.order import Order

from .nets import EIGHT_BITS, gradients, normal, relative_error

X = normal(48, 64)
pytestmark = pytest.mark.usefixtures("fresh_compiler")


class Kept(nn.Module):
    """A node that is stored as it is goes on to others: torch gives it a new name."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.function = function

    def forward(self, x):
        return self.function(self, x)


def normalized(self, x):
    h = self.first(x)
    return self.second(h / h.norm(dim=-1, keepdim=True))


def chosen(self, x):
    h = self.first(x)
    return torch.where(h > 0.1, h * 2, h * self.second(x))


@pytest.mark.parametrize(
    ("function", "backend"), [(normalized, "aot_eager"), (chosen, "aot_eager"), (chosen, "inductor")]
)
def test_a_saved_tensor_that_others_take_too(function, backend):
    """Nodes were told apart by name, so the renamed one was moved behind those that take it: torch.compile raised."""
    model = Kept(function)
    plain = gradients(copy.deepcopy(model), X)
    compiled = torch.compile(integrations.compress_model(model, "L1.1"), backend=backend)
    torch.manual_seed(1)
    compiled(X).square().mean().backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert relative_error(plain, found) < EIGHT_BITS


def chain(*names):
    """A graph of a placeholder, ``relu`` of it, of that, and so on, by name."""
    graph = Graph()
    node = graph.placeholder("x")
    for name in names:
        node = graph.create_node("call_function", F.relu, (node,), name=name)
    graph.output((node,))
    return graph, {node.name: node for node in graph.nodes}


def names(graph):
    return [node.name for node in graph.nodes]


def test_what_is_new_moves_to_what_it_takes():
    graph, nodes = chain("a", "b", "c", "d")
    order = Order(graph, Graph())
    with graph.inserting_before(graph.output_node()):
        stored = graph.call_function(torch.neg, (nodes["a"],))
        graph.call_function(torch.abs, (stored,))
    order.settle(graph, Graph())
    assert names(graph) == ["x", "a", "b", "neg", "abs_1", "c", "d", "output"]  # after the last that takes it
    graph.lint()


def test_what_is_new_and_needed_before_stays():
    """A node of the region's own that lost its mark, say: moved behind ``d``, which takes ``a``, too, it would come
    after ``c``, which takes it."""
    graph, nodes = chain("a", "b", "c", "d")
    nodes["d"].replace_input_with(nodes["c"], nodes["a"])
    order = Order(graph, Graph())
    nodes["b"].meta.clear()
    order.settle(graph, Graph())
    assert names(graph) == ["x", "a", "b", "c", "d", "output"]


def test_a_renamed_node_is_not_new():
    graph, nodes = chain("a", "b", "c")
    order = Order(graph, Graph())
    with graph.inserting_before(nodes["b"]):
        renamed = graph.create_node("call_function", F.relu, nodes["b"].args, name="b_hook_1")
    renamed.meta = copy.copy(nodes["b"].meta)
    nodes["b"].replace_all_uses_with(renamed)
    graph.erase_node(nodes["b"])
    order.settle(graph, Graph())
    assert names(graph) == ["x", "a", "b_hook_1", "c", "output"]


def test_what_restores_moves_to_the_first_that_takes_it():
    graph, nodes = chain("a", "b", "c")
    order = Order(Graph(), graph)
    with graph.inserting_after(nodes["x"]):
        restored = graph.call_function(torch.neg, (nodes["x"],))
    nodes["c"].replace_input_with(nodes["b"], restored)
    order.settle(Graph(), graph)
    assert names(graph) == ["x", "a", "b", "neg", "c", "output"]
    graph.lint()
