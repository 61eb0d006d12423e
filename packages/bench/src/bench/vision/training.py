"""Part ``training``: a model compressed beside full precision. Runs of a seed share weights and batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import nn

from bench.errors import reason
from bench.vision.compression.ways import WAYS
from bench.vision.resnet import loss
from bench.vision.tasks import MOMENTA, RATE, Batches, Task

FULL = "L0"
"""How results call full precision."""


@dataclass
class VisionCurve:
    """What one run did.

    Attributes:
        level, seed: which run; level is a name in ``WAYS``, or ``"L0"`` for full precision.
        losses: training loss of each epoch, the mean over its images as they were trained on.
        accuracy: of the test images after the last epoch, in percent: the most likely class is the right one.
        model: what was trained.
        images_per_second: of training, without the test; 0 in files of before it was measured.
        failure: what went wrong; empty otherwise.
        commit: of the code that ran; empty in older files.
    """

    level: str
    seed: int
    losses: list[float] = field(default_factory=list)
    accuracy: float = 0.0
    model: str = "resnet20"
    images_per_second: float = 0.0
    failure: str = ""
    commit: str = ""


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
    curve = VisionCurve(way, seed, model=task.model)
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
            curve.losses.append(total / images)
            advance()
        curve.images_per_second = count / seconds
        curve.accuracy = _accuracy(model, task, device)
    return curve


def train_in_pairs(
    task: Task,
    ways: Sequence[str],
    seeds: int,
    epochs: int,
    known: Sequence[VisionCurve],
    device: torch.device,
    keep: Callable[[VisionCurve], None],
    advance: Callable[[str], None],
) -> None:
    """Trains each seed at full precision and in each way. A run that fails is recorded, and the rest goes on.

    Args:
        task, epochs, device: as for ``train``.
        ways: names in ``WAYS``.
        seeds: how many; they are 0, 1, ...
        known: runs of before, which are not made again unless they failed.
        keep: called with each new run.
        advance: called with what was trained, after each epoch.
    """
    finished = {(run.model, run.level, run.seed) for run in known if not run.failure}
    for seed in range(seeds):
        for way in (FULL, *ways):
            what = partial(advance, f"{task.model}, {way}, seed {seed}")
            if (task.model, way, seed) in finished:
                for _ in range(epochs):
                    what()
                continue
            try:
                keep(train(task, way, seed, epochs, what, device))
            except Exception as error:  # whatever one run fails with, others are to be made
                keep(VisionCurve(way, seed, model=task.model, failure=reason(error)))


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
