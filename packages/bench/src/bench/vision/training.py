"""Part ``training``: ResNet-20 with Q-layers beside full precision. Runs of a seed share weights and batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor, nn

from bench.vision.images import Images
from bench.vision.resnet import loss, resnet20
from integrations import qmodules

BATCH = 64
RATE, MOMENTUM, WEIGHT_DECAY = 0.1, 0.9, 5e-4

RECIPE: Mapping[str, float] = MappingProxyType(
    {"batch": BATCH, "SGD, most": RATE, "momentum": MOMENTUM, "weight decay": WEIGHT_DECAY}
)


@dataclass
class VisionCurve:
    """What one run did.

    Attributes:
        level, seed: which run; level ``"L0"`` is torch's own layers.
        losses: training loss of each epoch, the mean over its images as they were trained on.
        accuracy: of the test images after the last epoch, in percent.
    """

    level: str
    seed: int
    losses: list[float] = field(default_factory=list)
    accuracy: float = 0.0


def train(level: str, seed: int, images: Images, epochs: int, advance: Callable[[], None]) -> VisionCurve:
    """Trains a ResNet-20, with Nesterov's momentum and one cycle of rates.

    Args:
        level: of ``qmodules.LEVELS``.
        seed: of the weights, the batches and the rounding.
        images: to train and to test on.
        epochs: of the run.
        advance: called after each.
    """
    curve = VisionCurve(level, seed)
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        # Convolutions on the CPU are faster by a third in this order of memory, with Q-layers and without.
        model = resnet20(images.x.shape[1]).to(memory_format=torch.channels_last)
    if level != "L0":
        qmodules.QModule(model, level, seed=seed)
    order = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), RATE, MOMENTUM, weight_decay=WEIGHT_DECAY, nesterov=True)
    steps = -(-len(images.x) // BATCH) * epochs
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, steps)
    for _ in range(epochs):
        total = 0.0
        for places in torch.randperm(len(images.x), generator=order).split(BATCH):
            optimizer.zero_grad()
            found = loss(model, *_batch(images.x, images.y, places))
            found.backward()
            optimizer.step()
            schedule.step()
            total += found.item() * len(places)
        curve.losses.append(total / len(images.x))
        advance()
    curve.accuracy = _accuracy(model, images)
    return curve


def train_in_pairs(
    levels: Sequence[str], seeds: int, images: Images, epochs: int, advance: Callable[[str], None]
) -> list[VisionCurve]:
    """Trains each seed at full precision, ``"L0"``, and at each level.

    Args:
        levels: of ``qmodules.LEVELS``, without ``"L0"``.
        seeds: how many; they are 0, 1, ...
        images, epochs: as for ``train``.
        advance: called with what was trained, after each epoch.
    """
    return [
        train(level, seed, images, epochs, partial(advance, f"{level}, seed {seed}"))
        for seed in range(seeds)
        for level in ("L0", *levels)
    ]


def _batch(x: Tensor, y: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    return x[places].to(memory_format=torch.channels_last), y[places]


@torch.no_grad()
def _accuracy(model: nn.Module, images: Images) -> float:
    model.eval()
    right = 0
    for places in torch.arange(len(images.test_x)).split(BATCH):
        x, y = _batch(images.test_x, images.test_y, places)
        right += int((model(x).argmax(1) == y).sum())
    return 100 * right / len(images.test_x)
