"""Parts ``variance`` and ``ablation``: the variance that rounding gives the gradient of a ResNet-20."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from bench.models.data.images import Images
from bench.models.resnet20 import backward, batch_of, loss, resnet20
from bench.suites.vision.gradient_variance import ablation_levels, get_var
from bench.suites.vision.results import Ablated, Variance, noise_metrics
from integrations import qmodules

BATCH = 128
STEPS = 60  # at full precision before; a network as it is made has gradients like no trained one's
RATE, MOMENTUM = 0.05, 0.9
BITS = 2.0
WITH_GRADIENTS = "+ per layer, use_gradient"


def trained(images: Images, steps: int) -> nn.Module:
    """A ResNet-20 after some steps at full precision, the same at each call."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = resnet20(images.x.shape[1])
    optimizer = torch.optim.SGD(model.parameters(), RATE, MOMENTUM, nesterov=True)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        places = torch.randint(len(images.x), (BATCH,), generator=generator)
        optimizer.zero_grad()
        loss(model, images.x[places], images.y[places]).backward()
        optimizer.step()
    return model


def measure(model: nn.Module, level: str, images: Images, repeats: int) -> Variance:
    """Predicted and measured variance of each layer's gradient.

    Args:
        model: of ``trained``; it is copied and stays.
        level: of ``qmodules.LEVELS``.
        images: the batch is of these, the same for all levels.
        repeats: of the measurement.
    """
    _, x, y = batch_of(images.x, images.y, BATCH)
    converted = qmodules.QModule(copy.deepcopy(model), level)
    return Variance(level, **_measured(converted, x, y, repeats))


def ablation() -> list[str]:
    """The steps of ActNN's ablation, and one with the gradient norm of each sample known."""
    return [*ablation_levels(BITS), WITH_GRADIENTS]


def ablate(model: nn.Module, step: str, images: Images, repeats: int) -> Ablated:
    """The variance at one of the steps."""
    places, x, y = batch_of(images.x, images.y, BATCH)
    if step != WITH_GRADIENTS:
        converted = qmodules.QModule(copy.deepcopy(model), ablation_levels(BITS)[step])
        return Ablated(step, **_measured(converted, x, y, repeats))
    options = {"bits": (BITS,), "use_gradient": True, "num_samples": len(images.x)}
    converted = qmodules.QModule(copy.deepcopy(model), "L3", **options)
    qmodules.model_precision(converted).batch = places
    return Ablated(step, **_measured(converted, x, y, repeats))


def _measured(converted: nn.Module, x: Tensor, y: Tensor, repeats: int) -> dict[str, Any]:
    for _ in range(2):  # in which layers get their bits
        backward(converted, x, y)
    return noise_metrics(get_var(converted, lambda: loss(converted, x, y).backward(), repeats))
