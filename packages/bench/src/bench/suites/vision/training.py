"""Part ``training``: a model compressed beside full precision; part ``time``: steps in turn."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor, nn

from bench.models.data.image_folder import ImageFolder
from bench.models.data.images import Images
from bench.models.image_models import MODELS
from bench.models.resnet20 import backward, draw_batch, loss, resnet20
from bench.runner.clock import in_turn
from bench.suites.vision.entries import FULL, StepTimes, VisionCurve
from bench.ways.conversions import WAYS
from integrations import qmodules

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


def train(task: Task, way: str, seed: int, epochs: int, device: torch.device | None = None) -> VisionCurve:
    """Trains a model, with Nesterov's momentum and one cycle of rates, and of momenta.

    Args:
        task: the model and its images.
        way: a name in ``WAYS``, or ``FULL``.
        seed: of the weights, the batches and the rounding.
        epochs: of the run.
        device: to train on; ``None``: the CPU.
    """
    device = device or torch.device("cpu")
    losses: list[float] = []
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        # Convolutions are faster in this order of memory, on the CPU by a third, with Q-layers and without.
        model = task.build().to(device).to(memory_format=torch.channels_last)
        if way != FULL:
            WAYS[way].convert(model, seed)
        order = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)  # of what is cut out of images, and of dropout: converting may have drawn
        least, most = MOMENTA.values()
        optimizer = torch.optim.SGD(model.parameters(), RATE, most, weight_decay=task.weight_decay, nesterov=True)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, RATE, task.steps * epochs, base_momentum=least, max_momentum=most
        )
        seconds, count = 0.0, 0
        for _ in range(epochs):
            total, images = 0.0, 0
            start = time.perf_counter()
            for x, y in _placed(task.batches(order), device):
                optimizer.zero_grad()
                found = loss(model, x, y)
                found.backward()
                optimizer.step()
                schedule.step()
                total += found.item() * len(y)  # waits for the device
                images += len(y)
            seconds += time.perf_counter() - start
            count += images
            losses.append(total / images)
        accuracy = _accuracy(model, task, device)
    return VisionCurve(way, seed, losses, accuracy, task.model, count / seconds)


def _placed(batches: Batches, device: torch.device) -> Batches:
    for x, y in batches:
        yield x.to(device, memory_format=torch.channels_last), y.to(device)


@torch.no_grad()
def _accuracy(model: nn.Module, task: Task, device: torch.device) -> float:
    model.eval()
    right = total = 0
    for x, y in _placed(task.tests(), device):
        right += int((model(x).argmax(1) == y).sum())
        total += len(y)
    return 100 * right / total


TIMED_BATCH = 128
FORMATS: Mapping[str, torch.memory_format] = MappingProxyType(
    {"contiguous": torch.contiguous_format, "channels last": torch.channels_last}
)
"""Orders of memory, by the name that tables have."""


def measure_times(order: str, levels: Sequence[str], images: Images, rounds: int) -> StepTimes:
    """Times steps of one batch; at each level after two, in which layers get their bits.

    Args:
        order: of ``FORMATS``.
        levels: names of ``qmodules.LEVELS``.
        images: the batch is of these.
        rounds: that count.
    """
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        plain = resnet20(images.x.shape[1]).to(memory_format=FORMATS[order])
    _, x, y = draw_batch(images.x, images.y, TIMED_BATCH)
    x = x.to(memory_format=FORMATS[order])
    models = [plain, *(qmodules.QModule(copy.deepcopy(plain), level) for level in levels)]
    actions = [partial(backward, model, x, y) for model in models]
    for action in actions:
        for _ in range(2):
            action()
    plain_seconds, *seconds = in_turn(actions, rounds, torch.device("cpu"))
    return StepTimes(order, TIMED_BATCH, plain_seconds, dict(zip(levels, seconds, strict=True)))
