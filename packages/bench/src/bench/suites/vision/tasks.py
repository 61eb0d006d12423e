"""What is trained on what: ResNet-20 on small images, or a full-size model on a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor, nn

from bench.models.data.image_folder import ImageFolder
from bench.models.data.images import Images
from bench.models.image_models import MODELS
from bench.models.resnet20 import resnet20

SMALL = "resnet20"
BATCH = 64  # of small images
RATE = 0.1
MOMENTA: Mapping[str, float] = MappingProxyType({"momentum, least": 0.85, "momentum, most": 0.95})
"""Least where the rate of a cycle is highest."""
SMALL_DECAY, DECAY = 5e-4, 1e-4  # of weights, on small images and on a folder

Batches = Iterator[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Task:
    """A model and the images that it is trained on.

    Attributes:
        model: its name.
        build: makes it, in training mode, with weights from torch's generator.
        batches: images and classes of an epoch, in an order of a generator's.
        tests: images and classes for test.
        steps: of an epoch.
        batch: images of a step.
        weight_decay: of the optimizer.
    """

    model: str
    build: Callable[[], nn.Module]
    batches: Callable[[torch.Generator], Batches]
    tests: Callable[[], Batches]
    steps: int
    batch: int
    weight_decay: float

    @property
    def recipe(self) -> Mapping[str, float]:
        """How it is trained, by name of the setting."""
        return MappingProxyType({"batch": self.batch, "SGD, most": RATE, **MOMENTA, "weight decay": self.weight_decay})


def on_images(images: Images) -> Task:
    """ResNet-20 on images that fit into memory."""
    return Task(
        SMALL,
        partial(resnet20, images.x.shape[1]),
        partial(_shuffled, images),
        partial(_in_order, images),
        -(-len(images.x) // BATCH),
        BATCH,
        SMALL_DECAY,
    )


def on_folder(model: str, folder: ImageFolder, batch: int) -> Task:
    """A model of ``MODELS`` on a folder's images."""
    build = partial(MODELS[model].build, folder.classes, folder.size)
    batches, tests = partial(folder.batches, batch), partial(folder.tests, batch)
    return Task(model, build, batches, tests, folder.steps(batch), batch, DECAY)


def _shuffled(images: Images, generator: torch.Generator) -> Batches:
    for places in torch.randperm(len(images.x), generator=generator).split(BATCH):
        yield images.x[places], images.y[places]


def _in_order(images: Images) -> Batches:
    yield from zip(images.test_x.split(BATCH), images.test_y.split(BATCH), strict=True)
