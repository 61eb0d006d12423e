"""Parts ``variance`` and ``ablation``: the variance that rounding gives the gradient of a ResNet-20."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from bench.vision.images import Images
from bench.vision.resnet import backward, batch_of, loss, resnet20
from bench.vision.results import Variance
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


def measure(
    model: nn.Module, levels: Sequence[str], images: Images, repeats: int, advance: Callable[[str], None]
) -> list[Variance]:
    """Predicted and measured variance of each layer's gradient, at each of ``qmodules.LEVELS``' names.

    Args:
        model: of ``trained``; it is copied and stays.
        levels: to measure at, each on the same batch.
        images: the batch is of these.
        repeats: of each measurement.
        advance: called with what was measured.
    """
    _, x, y = batch_of(images.x, images.y, BATCH)
    found = []
    for level in levels:
        converted = qmodules.QModule(copy.deepcopy(model), level)
        found.append(Variance(level, _measured(converted, x, y, repeats)))
        advance(f"variance, {level}")
    return found


def ablate(model: nn.Module, images: Images, repeats: int, advance: Callable[[str], None]) -> list[Variance]:
    """The variance at each step of ActNN's ablation, and with the gradient norm of each sample known."""
    places, x, y = batch_of(images.x, images.y, BATCH)
    found = []
    for name, level in qmodules.ablation_levels(BITS).items():
        converted = qmodules.QModule(copy.deepcopy(model), level)
        found.append(Variance(name, _measured(converted, x, y, repeats)))
        advance(f"ablation, {name}")
    converted = qmodules.QModule(copy.deepcopy(model), "L3", bits=(BITS,), use_gradient=True, num_samples=len(images.x))
    qmodules.model_precision(converted).batch = places
    found.append(Variance(WITH_GRADIENTS, _measured(converted, x, y, repeats)))
    advance(f"ablation, {WITH_GRADIENTS}")
    return found


def _measured(converted: nn.Module, x: Tensor, y: Tensor, repeats: int) -> qmodules.GradientVariance:
    for _ in range(2):  # in which layers get their bits
        backward(converted, x, y)
    return qmodules.get_var(converted, lambda: loss(converted, x, y).backward(), repeats)
