"""Part ``training``: a model compressed beside full precision. Runs of a seed share weights and batches."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn

from bench.models.resnet20 import loss
from bench.suites.vision.results import FULL, VisionCurve
from bench.suites.vision.tasks import MOMENTA, RATE, Batches, Task
from bench.ways.conversions import WAYS


def train(
    task: Task, way: str, seed: int, epochs: int, advance: Callable[[], None], device: torch.device | None = None
) -> VisionCurve:
    """Trains a model, with Nesterov's momentum and one cycle of rates, and of momenta.

    Args:
        task: the model and its images.
        way: a name in ``WAYS``, or ``FULL``.
        seed: of the weights, the batches and the rounding.
        epochs: of the run.
        advance: called after each.
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
            advance()
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
