"""A capture takes no step: what it looks at stays as it was, and what it says is true."""

import dataclasses
import json
import random
import warnings

import pytest
import torch
from torch import nn

from integrations import checkpoint
from integrations.capture.graphs.schedule import Schedule
from integrations.checkpoint import Graph, capture

from .nets import Net, mlp, normal
from .recompute_nets import NETS, net
from .recompute_reference import assert_as_plain


class Counting(nn.Module):
    """Draws from every generator, and notes what it saw."""

    def __init__(self, looks):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.looks, self.calls = looks, 0

    def forward(self, x):
        self.calls += 1
        random.random()
        x = nn.functional.dropout(self.norm(self.linear(x)), 0.5)
        self.last = x
        if self.looks:
            x = x * x.abs().max().item()
        return x


@pytest.mark.parametrize("looks", [False, True], ids=["fake", "real"])
def test_nothing_is_touched(looks):
    model, x = Counting(looks).train(), normal(8, 4)
    model(x).sum().backward()
    fired = []
    hooks = [
        parameter.register_post_accumulate_grad_hook(lambda parameter: fired.append(parameter))
        for parameter in model.parameters()
    ]
    before = [parameter.grad.clone() for parameter in model.parameters()]
    grads = [parameter.grad for parameter in model.parameters()]
    buffers = [buffer.clone() for buffer in model.buffers()]
    state, python, last = torch.get_rng_state(), random.getstate(), model.last
    graph = capture(model, x)
    assert bool(graph.note) == looks
    assert all(parameter.grad is grad for parameter, grad in zip(model.parameters(), grads, strict=True))
    assert all(torch.equal(*pair) for pair in zip(before, grads, strict=True))
    assert all(torch.equal(*pair) for pair in zip(buffers, model.buffers(), strict=True))
    assert torch.equal(state, torch.get_rng_state())
    assert random.getstate() == python
    assert model.last is last
    assert model.calls == 1
    assert len(hooks) == 4
    assert fired == []


def test_a_model_that_looks_at_its_numbers_is_captured_on_real_tensors():
    model, x = Counting(True).train(), normal(8, 4)
    graph = capture(model, x)
    assert "captured on real tensors: on fake ones it raised DataDependentOutputException" in graph.note
    # What .item() returned is a number of the first forward: repeated as it is, in each forward its own.
    assert_as_plain(model, graph, [], (x,), {})


@pytest.mark.parametrize("name", NETS)
def test_fake_and_real_tensors_give_one_graph(name):
    model, args, kwargs = net(name)
    fake = capture(model, args, kwargs)
    real = capture(model, args, kwargs, real=True)
    assert real.note == "captured on real tensors: as asked"
    assert [(op.name, op.shapes, op.reads, op.makes) for op in fake.ops] == [
        (op.name, op.shapes, op.reads, op.makes) for op in real.ops
    ]
    for one, other in zip(fake.values, real.values, strict=True):
        # How large oneDNN's workspace is, only oneDNN knows.
        assert one.nbytes == other.nbytes or fake.ops[one.producer].name == "aten.mkldnn_rnn_layer.default"
    assert [value.saved >= 0 for value in fake.values] == [value.saved >= 0 for value in real.values]


def test_the_numbers_of_a_graph():
    model = mlp(width=8, depth=2).train()
    graph = capture(model, normal(4, 8))
    nbytes = 4 * 8 * 4
    assert [op.name for op in graph.ops] == ["aten.addmm.default", "aten.relu.default"] * 2
    assert [op.module for op in graph.ops] == ["0", "1", "2", "3"]
    assert [op.reads for op in graph.ops] == [(), (0,), (1,), (2,)]
    assert [op.packs for op in graph.ops] == [(), (1,), (), (3,)]
    assert [value.nbytes for value in graph.values] == [nbytes] * 4
    assert [value.saved >= 0 for value in graph.values] == [False, True, False, True]
    assert graph.outputs == (3,)
    assert graph.gradients == sum(parameter.nbytes for parameter in model.parameters())
    # Beside these the loss, its gradient, and that of the first layer's result.
    assert graph.gradients <= graph.other[-1] <= graph.gradients + nbytes + 8
    assert all(other == 0 for other in graph.other[:4])
    assert next(step.reads for step in graph.steps if step.reads) == (3,)


def test_json_round_trip():
    model, args, kwargs = net("resnet")
    graph = capture(model, args, kwargs)
    assert Graph.from_json(graph.to_json()) == graph


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "of format 2; got format None"),
        ("{", "it is not JSON"),
        ('{"format": 9}', "got format 9"),
        ('{"format": 1}', "got format 1"),
        ('{"format": 2}', "a field is missing, unknown or of another type: .*'ops'"),
    ],
)
def test_what_is_no_graph_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        Graph.from_json(text)


def test_a_graph_that_contradicts_itself_is_refused():
    graph = capture(mlp(width=8).train(), normal(4, 8))
    broken = dataclasses.replace(graph, other=graph.other[1:])
    with pytest.raises(ValueError, match="other must have an entry for each"):
        Graph.from_json(broken.to_json())
    broken = dataclasses.replace(graph, ops=graph.ops[::-1])
    with pytest.raises(ValueError, match="numbered in the order"):
        Graph.from_json(broken.to_json())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content["values"][2].update(reuses=2), "value 2 must take over -1 or a value made before it"),
        (lambda content: [content["values"][n].update(reuses=0) for n in (1, 2)], "taken over by one other at most"),
        (lambda content: content["values"][2].update(nbytes=-1), "value 2 must have bytes"),
        (lambda content: content["values"][2].update(saved=999), "value 2 must have bytes, and events of this graph"),
        (lambda content: content["ops"][1].update(makes=[]), "numbered in the order"),
        (lambda content: content["ops"][1].update(packs=[99]), "must be values of the graph"),
        (lambda content: content.update(outputs=[-1]), "must be values of the graph"),
        (lambda content: content["ops"].__setitem__(1, 3), "Op must be an object, got 3"),
        (lambda content: content["ops"][1].update(seconds="1"), "seconds must be float, got '1'"),
        (lambda content: content["ops"][1].update(repeatable=1), "repeatable must be bool, got 1"),
        (lambda content: content["inputs"].update(shapes=[["4", 8]]), "shapes must be int, got '4'"),
    ],
)
def test_a_graph_of_broken_entries_is_refused(change, message):
    """A value that takes over itself would have a forward look for the last of its line for ever."""
    content = json.loads(capture(mlp(width=8).train(), normal(4, 8)).to_json())
    change(content)
    with pytest.raises(ValueError, match=message):
        Graph.from_json(json.dumps(content))


def test_unknown_values_are_refused():
    graph = capture(mlp(width=8).train(), normal(4, 8))
    with pytest.raises(ValueError, match=r"kept must name values of the graph, 0 to 5, got 6"):
        Schedule.of(graph, [6])


def test_a_model_without_gradients_is_refused():
    model = Net(lambda model, x: x * 2).train()
    with pytest.raises(ValueError, match="must return a tensor that requires a gradient, and Net returned none"):
        capture(model, normal(3))


def test_the_models_own_error_is_raised():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        capture(mlp(width=8).train(), normal(4, 9))


def test_the_fingerprint_tells_models_and_inputs_apart():
    model = mlp(width=8).train()
    graph = capture(model, normal(4, 8))
    assert graph.fingerprint == capture(mlp(width=8).train(), normal(4, 8, seed=1)).fingerprint
    assert graph.inputs != capture(mlp(width=8).train(), normal(5, 8)).inputs
    assert graph.fingerprint != capture(mlp(width=8, depth=2).train(), normal(4, 8)).fingerprint


def test_a_part_that_is_compiled_is_captured_without_a_warning():
    """Torch warns of one where there are hooks for all modules."""
    model, x = mlp(width=8).train(), normal(4, 8)
    expected = capture(model, x)
    model[2] = torch.compile(model[2], backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = capture(model, x)
    assert [op.name for op in found.ops] == [op.name for op in expected.ops]
    assert [op.module for op in found.ops] == ["0", "1", "2._orig_mod", "3", "4", "5"]


def test_what_cannot_be_repeated_is_not():
    """What reads memory that the forward itself writes, and an operator that nobody knows."""

    def forward(model, x):
        model.seen.mul_(0.5).add_(x.detach().mean(0), alpha=0.5)
        return (x * model.weight - model.seen).sin().exp()

    model = Net(forward, weight=normal(4)).train()
    model.register_buffer("seen", torch.zeros(4))
    graph = capture(model, normal(6, 4))
    repeatable = {op.name: op.repeatable for op in graph.ops}
    assert not repeatable["aten.sub.Tensor"]
    assert repeatable["aten.mul.Tensor"]
    assert repeatable["aten.exp.default"]
    assert_as_plain(model, graph, [], (normal(6, 4),), {}, steps=3)


class Marking(torch.autograd.Function):
    """Changes its arguments in place, computes from them, and then says that it has changed them."""

    @staticmethod
    def forward(ctx, x, y):
        x.mul_(2)
        y.add_(1)
        z = x * y
        ctx.mark_dirty(x, y)
        ctx.save_for_backward(x, y)
        return x, y, z

    @staticmethod
    def backward(ctx, a, b, c):
        x, y = ctx.saved_tensors
        return 2 * (a + c * y), b + c * x


class Marked(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.norm = nn.LayerNorm(16)

    def forward(self, x):
        for linear in self.linear:
            h = linear(x)
            a, b, c = Marking.apply(self.norm(h), h * 1.5)
            x = a + b + c.tanh()
        return x


def test_what_is_said_to_be_written_later_is_not_read_again():
    """A repetition would find another version than it was noted with, and raise."""
    model, x = Marked().train(), normal(8, 16)
    graph = capture(model, x)
    for share in (0.0, 0.5):
        assert_as_plain(
            model, graph, [value for value in range(len(graph.values)) if value < share * len(graph.values)], (x,), {}
        )


class Twice(torch.autograd.Function):
    """Computes what it did once more in backward, and differentiates that, as attention does at a level."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp().sin()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (found,) = torch.autograd.grad(x.exp().sin(), x, gradient)
        return found


def test_what_a_node_has_read_is_there_while_it_runs_another_backward():
    """Rounded plans of a BERT took 1.18 of what was planned: query, key and value were gone after their first use."""
    model, x = Net(lambda self, x: Twice.apply(x @ self.weight), weight=normal(64, 64)), normal(32, 64)
    graph = capture(model, (x,))
    [made] = [op.makes[0] for op in graph.ops if "mm" in op.name]
    most = max(range(len(graph.ops), len(graph.other)), key=lambda event: graph.other[event])
    assert made in graph.steps[most - len(graph.ops)].reads
    assert graph.other[most] > 2 * graph.values[made].nbytes


def test_a_complex_number_is_no_loss():
    """``backward()`` cannot start from one: the capture gives it a gradient, as the training loop does."""
    model = Net(lambda self, x: (self.w * x).sum(), w=normal(8, 8).to(torch.complex64))
    plan = checkpoint.plan(model, (normal(8, 8),))
    checkpoint.apply(model, plan)
    model(normal(8, 8)).abs().backward()
    assert model.w.grad.shape == (8, 8)
