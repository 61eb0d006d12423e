"""Small models, and layers without a model, for tests of how many bits each gets."""

import itertools

import torch
from torch import nn

from integrations.qmodules.precision import LayerPrecision
from integrations.qmodules.scheme import ModelPrecision, Observation

PROFILE = torch.tensor([1 / (2**bits - 1) ** 2 for bits in range(1, 9)], dtype=torch.float64)


def convolutions(*widths, seed=0):
    torch.manual_seed(seed)
    layers = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers)


def batch(samples=8, channels=4, seed=0):
    return torch.randn(samples, channels, 16, 16, generator=torch.Generator().manual_seed(seed))


def step(model, x):
    model.zero_grad()
    model(x).square().mean().backward()


def bits(model):
    return {
        name: layer.precision.bits
        for name, layer in model.named_modules()
        if hasattr(layer, "precision") and layer.precision.kind != "other"
    }


class InBackward(torch.autograd.Function):
    """Calls something in its backward, as the layers do."""

    @staticmethod
    def forward(ctx, x, call):
        ctx.call = call
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.call()
        return gradient, None


def in_backward(call):
    InBackward.apply(torch.ones(1, requires_grad=True), call).sum().backward()


def parts(level, *groups):
    model = ModelPrecision(level)
    layers = []
    for group in groups:
        layers.append(LayerPrecision(level, "linear", group))
        layers[-1].model = model
    return model, layers


def tell(model, *observations):
    def call():
        for layer, sensitivities, size in observations:
            model.observe(Observation(layer, torch.tensor(sensitivities).double(), PROFILE, size, object()))

    in_backward(call)
