"""``integrations.forecast``: the report of a forward that has not run, or has run for small batches alone."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import integrations
from integrations.estimate.forecast.scaled import scaled
from integrations.estimate.forecast.subject import Subject

from .nets import Net, as_told, mlp, normal


def images():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3),
        nn.SiLU(),
        nn.Dropout2d(0.2),
        nn.Flatten(),
        nn.LazyLinear(10),
    )


X = normal(48, 64)


class Block(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.dropout = dropout

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)
        return x + F.dropout(self.out(mixed.transpose(1, 2).flatten(2)), 0.1)


class Segments(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(0.0), Block(0.0))

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def tied():
    model = nn.Sequential(nn.Embedding(50, 32), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 50))
    model[3].weight = model[0].weight
    return model


def graph(x, edges):
    return torch.zeros(20, 32).index_add(0, edges[1], x[edges[0]]).relu()


def kept_edges(self, x, edges):
    """As many rows as there are edges between two nodes: a shape that integers decide."""
    return graph(F.linear(x, self.w), edges[:, edges[0] != edges[1]])


MODELS = {
    "images": (images, lambda: (normal(4, 3, 12, 12),)),
    "attention": (lambda: nn.Sequential(Block(0.0), Block(0.3)), lambda: (normal(4, 40, 32),)),
    "checkpoints": (Segments, lambda: (normal(4, 40, 32),)),
    "tied": (tied, lambda: (torch.arange(48).view(4, 12),)),
    "graph": (
        lambda: Net(kept_edges, w=normal(32, 32)),
        lambda: (normal(20, 32), torch.stack([torch.arange(60) % 20, torch.arange(60) % 7])),
    ),
}


@pytest.mark.parametrize("level", ["L1", "L1.2", "swap"])
@pytest.mark.parametrize("name", MODELS)
def test_a_forecast_is_the_report_of_the_real_forward(name, level):
    make, inputs = MODELS[name]
    torch.manual_seed(0)
    model, given = make(), inputs()
    model(*given)  # makes what is lazy
    foreseen = integrations.forecast(model, given, level=level)
    integrations.compress_model(model, level)
    model(*given).sum().backward()
    assert as_told(foreseen) == as_told(integrations.compression(model).report())
    assert foreseen.original_bytes > 0


class Alias(torch.autograd.Function):
    """A custom function, inside of which the forward's tracker sees what is asked of a tensor."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clone()


class Aliased(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.layers = nn.Linear(64, 64), nn.ModuleList(nn.Linear(64, 64) for _ in range(3))

    def forward(self, x):
        x = F.gelu(self.before(x))
        return sum(layer(Alias.apply(x)) for layer in self.layers)


def test_a_forecast_recomputes_behind_a_custom_function():
    """It counted a copy for each layer: reading a tensor's storage inside of the function was taken for the model's."""
    x = normal(48, 64)
    found = integrations.forecast(Aliased(), x, level="lean")
    model = integrations.compress_model(Aliased(), level="lean")
    model(x)
    report = integrations.compression(model).report()
    assert as_told(found) == as_told(report)
    assert [row.codec for row in report.rows if row.operator == "linear" and not row.owner] == ["recomputed"] * 3


@pytest.mark.parametrize("level", ["L2", "L2.2"])
def test_a_forecast_of_an_adaptive_level_is_what_its_plan_may_take(level):
    """And takes, but for less than one bit more an element of the largest tensor: with that, one of them would be
    raised."""
    torch.manual_seed(0)
    model, x = nn.Sequential(Block(0.0), Block(0.0), nn.Linear(32, 32), nn.GELU()), normal(4, 40, 32)
    foreseen = integrations.forecast(model, x, level=level)
    handle = integrations.compression(integrations.compress_model(model, level))
    handle.adapt(lambda: model(x).square().sum().backward())
    model(x).square().sum().backward()
    found = handle.report()
    largest = max(row.original_bytes for row in found.rows) // 4
    assert foreseen.stored_bytes - largest // 8 < found.stored_bytes <= foreseen.stored_bytes
    assert foreseen.level == found.level == level
    assert "average bits" in foreseen.plan


def test_options_of_the_level_are_taken():
    model, x = mlp(), normal(48, 64)
    few, many = (integrations.forecast(model, x, level="L1", bits=bits).stored_bytes for bits in (2, 8))
    assert few < many
    assert integrations.forecast(model, x, level="L1", bits=2).level == "L1 with bits=2"


def test_a_forecast_touches_nothing():
    model, x = images(), normal(4, 3, 12, 12)
    model(x).sum().backward()
    model.eval()
    state = copy.deepcopy(model.state_dict())
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    before = torch.get_rng_state()
    integrations.forecast(model, x)
    assert torch.equal(torch.get_rng_state(), before)
    assert not model.training
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is gradients[name] for name, parameter in model.named_parameters())
    assert x.grad is None
    with pytest.raises(ValueError, match="is not compressed"):
        integrations.compression(model)


def test_a_forecast_takes_a_model_and_inputs_without_memory():
    """A batch of a million: 2.6 TB of activations."""
    with torch.device("meta"):
        model, x = mlp(width=10_000, depth=2), torch.empty(1_000_000, 10_000)
    report = integrations.forecast(model, x)
    # Both ReLU results, of which the first is the second layer's input, too; 4 bits and 8 bytes a group, or 1 bit.
    elements = 10**10
    assert report.original_bytes == 2 * 4 * elements
    assert report.stored_bytes == elements // 8 * 2 + elements // 2 + elements // 128 * 8


def test_a_forecast_says_that_it_is_one():
    report = integrations.forecast(mlp(), normal(48, 64))
    assert "A forecast" in report.caption
    assert "A forecast" in str(report)
    assert report.model == "Sequential"


def test_a_forward_that_looks_at_elements_raises():
    model = Net(lambda self, x: F.linear(x, self.w) * x.max().item(), w=normal(64, 64))
    with pytest.raises(RuntimeError, match=r"the forward of Net reads tensor values.*compress the model, call it once"):
        integrations.forecast(model, normal(48, 64))


@pytest.mark.parametrize(
    ("model", "options", "error", "message"),
    [
        (3, {}, TypeError, "model must be a torch.nn.Module, got int"),
        (mlp(), {"level": "L9"}, ValueError, "level must be one of"),
        (mlp(), {"bts": 3}, ValueError, "options of a level are"),
        (integrations.compress_model(mlp()), {}, ValueError, "compressed already"),
    ],
)
def test_bad_input_raises(model, options, error, message):
    with pytest.raises(error, match=message):
        integrations.forecast(model, normal(48, 64), **options)


def looking(batch):
    torch.manual_seed(0)
    model = Net(lambda self, x: F.linear(x, self.w).relu() * x.max().item(), w=normal(64, 64))
    return Subject("looking", model, (normal(16 * batch, 64),))


@pytest.mark.parametrize("batch", [3, 20])
def test_a_forward_that_looks_at_elements_is_run_for_small_batches_and_continued(batch):
    """Its tensors are of whole groups at every size, so that the line through two sizes is exact."""
    report = scaled(looking, batch, "L1.1")
    subject = looking(batch)
    integrations.compress_model(subject.model, "L1.1")
    subject.model(*subject.args).sum().backward()
    assert as_told(report) == as_told(integrations.compression(subject.model).report())
    assert "reads tensor values" in report.note


def test_what_saves_other_tensors_for_another_batch_cannot_be_continued():
    def make(batch):
        return Subject(
            "odd", Net(lambda self, x: F.gelu(x @ self.w) if batch > 2 else x @ self.w, w=normal(64, 64)), (X,)
        )

    with pytest.raises(RuntimeError, match="turn off its randomness"):
        scaled(make, 8, "L1")
