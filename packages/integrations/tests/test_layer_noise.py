"""How noise in values changes the gradients of layers, before anything is measured."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations
from actcore import GroupAffine
from integrations.api.error_control.gradient_errors import measured_errors
from integrations.planner.bounds import Bounds
from integrations.planner.plan_with_stores import planned
from integrations.planner.sensitivity.weights import estimate_noise, layer_noise

from .nets import mlp, normal
from .rounding_plans import BASE


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_the_noise_of_rounding_is_that_of_normally_distributed_elements(bits):
    x = normal(1 << 18)
    codec = GroupAffine(bits, 256)
    error = codec.decompress(codec.compress(x, seed=0, stream=0)) - x
    # A group's squared range has a mean of 31.9, for 5.6 squared, and over 1024 groups that varies by less than 1 %.
    # At two bits, elements between the codes are not spread evenly.
    assert error.square().mean() / x.square().mean() == pytest.approx(estimate_noise(bits), rel=0.1)


def test_layers_share_the_gradient_and_what_is_below_a_node_makes_its_weight():
    plan = planned(mlp(), BASE, (normal(32, 64),), {}, Bounds(error=0.1))
    graph, saves = plan.rounded, plan.rounded_candidates.saves
    layers = [save for save in saves if save.of_layer]
    # The input of the first layer is the model's, and no value; ReLUs' results are both a sign and an input.
    assert [save.identity.module for save in layers] == ["2", "4"]
    noise = layer_noise(graph, saves)
    assert sum(noise.weights(noise.shares)) == pytest.approx(1)
    # Noise in a layer's input concerns that layer alone, in full, where layers are linear.
    for save in layers:
        column = noise.layers.index(save.identity.module)
        assert noise.parts[save.value].tolist() == [float(place == column) for place in range(len(noise.layers))]


def test_noise_in_an_activations_input_concerns_the_layers_below_it():
    model = nn.Sequential(nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 64))
    plan = planned(model, BASE, (normal(32, 64),), {}, Bounds(error=0.1))
    graph, saves = plan.rounded, plan.rounded_candidates.saves
    noise = layer_noise(graph, saves)
    [first, second] = [save.value for save in saves if save.identity.operator == "silu"]
    below = {layer: part for layer, part in zip(noise.layers, noise.parts[first].tolist(), strict=True) if part}
    assert list(below) == ["0"]
    parts = dict(zip(noise.layers, noise.parts[second].tolist(), strict=True))
    assert parts["0"] == parts["2"] > 0
    assert parts["4"] == 0


def test_layers_of_a_large_model_are_merged_by_the_modules_around_them(monkeypatch):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 64)) for _ in range(3)))
    whole = planned(model, BASE, (normal(32, 64),), {}, Bounds(error=0.1))
    noise = layer_noise(whole.rounded, whole.rounded_candidates.saves)
    monkeypatch.setattr("integrations.planner.sensitivity.weights._MOST_LAYERS", 4)
    merged = layer_noise(whole.rounded, whole.rounded_candidates.saves)
    assert noise.layers == ("0.0", "0.2", "1.0", "1.2", "2.0", "2.2")
    assert merged.layers == ("0", "1", "2")
    assert merged.weights(merged.shares) == pytest.approx(noise.weights(noise.shares))


class Prompted(nn.Module):
    """With all that trains in front of the first operator."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.layers = mlp().requires_grad_(False)
        self.embedding = nn.Embedding(256, 64) if kind == "embedding" else None
        self.prompt = nn.Parameter(0.1 * torch.randn(256, 64)) if kind == "prompt" else None
        self.layers[0].requires_grad_(kind == "first")

    def forward(self, x):
        if self.embedding is not None:
            return F.gelu(self.layers(F.gelu(self.embedding.weight)))
        return F.gelu(self.layers(x if self.prompt is None else F.gelu(x + self.prompt)))


@pytest.mark.parametrize("kind", ["first", "prompt", "embedding"])
def test_what_trains_without_a_value_as_its_input_has_an_error_that_is_bounded(kind):
    model, x = Prompted(kind), normal(256, 64)
    plan = integrations.plan(model, (x,), error=0.01, loss=lambda output: output.square().mean(), stores=("bits",))
    assert sum(plan.rounded_candidates.weights) > 0
    assert plan.measured is not None or not plan.choice.rounds
    assert measured_errors(model, (x,), {}, plan).relative <= 0.01 * 1.2  # another draw of the rounding
