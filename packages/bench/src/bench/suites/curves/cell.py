"""One training, and the peak of one step."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

import integrations
from bench.models.subject import Subject
from bench.runner.memory import Memory, peak_bytes
from bench.runner.process_memory import counters
from bench.suites.curves import tasks
from bench.suites.curves.entries import WAYS, Trained
from bench.suites.curves.tasks import Task
from bench.ways.general import PLAIN, Forward

_POINTS = 20  # mean losses of a run, over as many parts of it
_WARM_UP = 0.1  # of the steps
_CLIPPED = 1.0  # norm of the gradient, at most


def train(blank: Trained, *, size: str, device: str, data_root: str | None = None) -> Trained:
    """Train a task in one way with one seed, in this process.

    Args:
        blank: without numbers.
        size: of ``tasks.RECIPES``.
        device: to train on.
        data_root: folder of data sets; default: ``ACTCORE_DATA``.
    """
    return trained(blank, tasks.load(blank.task, size, data_root, device))


def trained(blank: Trained, task: Task) -> Trained:
    """Train a task that is loaded already."""
    recipe, batches = task.recipe, torch.Generator().manual_seed(blank.seed)
    subject, forward = _ready(task, blank.way, blank.seed, batches)
    model = subject.model
    optimizer = torch.optim.AdamW(model.parameters(), recipe.rate, weight_decay=recipe.decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, recipe.rate, recipe.steps, pct_start=_WARM_UP, anneal_strategy="linear", cycle_momentum=False
    )
    losses = []
    for _ in range(recipe.steps):
        optimizer.zero_grad()
        loss = task.draw(model, batches).step(forward)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), _CLIPPED)
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())

    def step() -> None:
        model.zero_grad()
        subject.step(forward).backward()

    error = 0.0 if blank.way == PLAIN else integrations.compression(model).gradient_error(step).relative
    held_out, accuracy = _tested(model, task)
    return replace(
        blank,
        losses=[float(part.mean()) for part in torch.stack(losses).tensor_split(min(_POINTS, recipe.steps))],
        held_out=held_out,
        accuracy=accuracy,
        error=error,
    )


def measure_peak(blank: Memory, *, size: str, device: str, data_root: str | None = None) -> Memory:
    """Measure the peak of one step, in this process, after two others: a plan is built in the first.

    Args:
        blank: of a task's name, and a way's as its level.
        size, device, data_root: as of ``train``.
    """
    found = counters(torch.device(device))
    if isinstance(found, str):
        return replace(blank, not_measured=found)
    task = tasks.load(blank.model, size, data_root, device)
    subject, forward = _ready(task, blank.level, 0, torch.Generator().manual_seed(0))
    for _ in range(2):
        subject.model.zero_grad()
        subject.step(forward).backward()
    return replace(blank, peak_bytes=peak_bytes(subject.model, partial(subject.step, forward), found))


def _ready(task: Task, way: str, seed: int, batches: torch.Generator) -> tuple[Subject, Forward]:
    """A model with a batch, and what to call in the model's place. All ways of a seed go on with the same dropout."""
    torch.manual_seed(seed)
    subject = task.draw(task.build(), batches)
    forward, _ = WAYS[way].ready(subject)
    torch.manual_seed(seed)  # converting may have drawn
    return subject, forward


@torch.no_grad()
def _tested(model: nn.Module, task: Task) -> tuple[float, float]:
    """The mean loss of what is held out, in nats, and the accuracy in percent."""
    model.eval()
    logits, classes = task.test(model)
    return float(F.cross_entropy(logits, classes)), 100 * float((logits.argmax(1) == classes).float().mean())
