"""Tensors that somebody else keeps alive: left alone, and counted as nothing."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations

from .nets import Net, assert_same, mlp, normal, plain_and_compressed, rows

X = normal(48, 64)
W = normal(64, 64, seed=1) / 8


def owners(forward, *inputs, operator=None, model=None, **parameters):
    """Who owns what a forward's operator saves: ``{shape: owner}`` of the rows of that operator."""
    model = integrations.compress_model(model or Net(forward, **parameters), "L1", min_bytes=0)
    model(*inputs).sum().backward()
    report = integrations.compression(model).report()
    return [row.owner for row in report.rows if operator in (None, row.operator)]


@pytest.mark.parametrize(
    "view",
    [
        lambda w: w,
        lambda w: w.t(),
        lambda w: w.view(64, 64),
        lambda w: w.chunk(2)[0].t()[:64],
        lambda w: w[:, 8:40],
        lambda w: w.detach(),
        lambda w: w.data,
        lambda w: w.unsqueeze(0).expand(3, 64, 64)[1],
    ],
    ids=["itself", "t()", "view", "chunk", "slice", "detach", "data", "expand"],
)
def test_parameters_and_their_views(view):
    def forward(self, x):
        h = F.linear(x, self.below)
        return h @ view(self.weight) if view(self.weight).shape[0] == 64 else h

    found = owners(forward, X, operator="matmul", below=W, weight=W)
    assert "parameter" in found
    assert found.count("") <= 1  # the other operand, which is an activation


def test_slices_of_attentions_projection():
    class CrossAttention(nn.MultiheadAttention):
        def forward(self, x, y):
            return super().forward(x, y, y, need_weights=False)[0]

    model = integrations.compress_model(CrossAttention(32, 4), min_bytes=0)
    x = normal(5, 2, 32).requires_grad_()
    model(x * 2, normal(7, 2, 32, seed=3).requires_grad_() * 2).sum().backward()
    weights = [row for row in integrations.compression(model).report().rows if row.owner == "parameter"]
    assert {row.shape for row in weights} >= {(32, 32), (32, 64)}  # the query's slice, the keys' and values'


def test_buffers():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(W.clone())
            self.register_buffer("scale", normal(48, 64, seed=3))

        def forward(self, x):
            return F.linear(x, self.weight) * self.scale

    assert owners(None, X, operator="mul", model=Scaled()) == ["buffer"]


def test_batch_norms_running_statistics_are_its_own():
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64))
    plain, compressed, model = plain_and_compressed(model, X, norm_bits=8)
    assert_same({"bias": plain["1.bias"]}, {"bias": compressed["1.bias"]})
    assert int(model[1].num_batches_tracked) == 1
    assert "buffer" in [row.owner for row in rows(model, "batch_norm", owned=True)]


@dataclasses.dataclass
class Batch:
    x: torch.Tensor


@pytest.mark.parametrize(
    "give",
    [
        lambda model, x: model(x),
        lambda model, x: model(x=x),
        lambda model, x: model([x]),
        lambda model, x: model({"x": {"nested": (x,)}}),
        lambda model, x: model(Batch(x)),
        lambda model, x: model(x.t().contiguous().t()),
        lambda model, x: model.forward(x),
    ],
    ids=["positional", "keyword", "list", "nested", "dataclass", "transposed", "forward"],
)
def test_the_callers_inputs(give):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(W.clone())

        def forward(self, x):
            while not isinstance(x, torch.Tensor):
                x = x.x if isinstance(x, Batch) else next(iter(x.values() if isinstance(x, dict) else x))
            return F.linear(x[8:], self.weight)

    model = integrations.compress_model(Model())
    give(model, X).sum().backward()
    [row] = integrations.compression(model).report().rows
    assert row.owner in ("input of the model", "made before the forward")
    assert (row.original_bytes, row.stored_bytes) == (0, 0)


def test_the_callers_inputs_in_a_block():
    """Under the context manager the inputs are those of the model and of the loss."""
    model, target = mlp(), normal(48, 64, seed=7)
    with integrations.compress(model) as handle:
        loss = F.mse_loss(model(X), target)
        loss.backward()
    owned = [row for row in handle.report().rows if row.owner and "parameter" not in row.owner]
    assert [row.operator for row in owned] == ["linear", "mse_loss"]
    assert {row.owner for row in owned} == {"made before the forward"}


@pytest.mark.parametrize("made", ["closure", "attribute", "in place"])
def test_tensors_made_before_the_forward(made):
    table = normal(48, 64, seed=3)

    def forward(self, x):
        h = F.linear(x, self.weight)
        return h * {"closure": table, "attribute": getattr(self, "table", None), "in place": table.add_(0)}[made]

    model = Net(forward, weight=W)
    model.table = table
    assert owners(None, X, operator="mul", model=model) == ["made before the forward"]


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x * 2,
        lambda x: x.detach().clone(),
        lambda x: torch.zeros(48, 64),
        lambda x: x.new_ones(48, 64),
        lambda x: torch.arange(64.0).expand(48, 64).contiguous(),
        lambda x: x.sort(1).values,
        lambda x: torch.cat([x, x]),
        lambda x: torch.empty(48, 64).copy_(x),
    ],
)
def test_what_the_forward_makes_is_compressed_even_without_gradients(make):
    """An input's product requires no gradient and has no history, like the input; but only autograd keeps it."""
    model = integrations.compress_model(Net(lambda self, x: F.linear(make(x), self.weight), weight=W))
    model(X).sum().backward()
    [row] = rows(model, "linear")
    assert "bits=4" in row.codec


def test_a_tied_weight_is_a_parameter_everywhere():
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    model[1].weight = model[0].weight
    plain, compressed, model = plain_and_compressed(model, X, level="L1.1")
    assert_same({"0.bias": plain["0.bias"]}, {"0.bias": compressed["0.bias"]})
    assert "parameter" in [row.owner for row in rows(model, "linear", owned=True)]


def test_weights_given_by_functional_call_are_parameters():
    model = integrations.compress_model(mlp())
    given = {name: parameter.detach().clone().requires_grad_() for name, parameter in model.named_parameters()}
    torch.func.functional_call(model, given, (X,)).sum().backward()
    assert [row.owner for row in rows(model, "linear", owned=True)].count("parameter") == 2
    assert all(value.grad is not None for value in given.values())


def test_a_weight_reassigned_between_steps_is_a_parameter():
    model = integrations.compress_model(mlp())
    model(X).sum().backward()
    model[2].weight = nn.Parameter(W.clone())
    model(X).sum().backward()
    assert [row.owner for row in rows(model, "linear", owned=True)].count("parameter") == 2
