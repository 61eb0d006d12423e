"""Part ``accuracy``: a network on a task, trained in one way."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from sklearn import metrics
from torch import Tensor, nn

import integrations
from bench.models.data.encoding import Encoded, Examples
from bench.models.data.glue import TASKS, Task, Texts
from bench.models.glue_networks import blocks
from bench.models.subject import Subject
from bench.runner.memory import saved_bytes
from bench.suites.text.entries import Facts, Run
from bench.ways import text as ways
from bench.ways.general import PLAIN

Values = NDArray[np.generic]


def accuracy(labels: Values, guesses: Values) -> float:
    """The part that is guessed."""
    return float(100 * np.mean(labels == guesses))


def f1(labels: Values, guesses: Values) -> float:
    """The harmonic mean of precision and recall of class 1; 0 where nothing of it is guessed."""
    return float(100 * metrics.f1_score(labels, guesses, zero_division=0))


def matthews(labels: Values, guesses: Values) -> float:
    """The correlation of labels and guesses; 0 where all guesses are alike."""
    return float(100 * metrics.matthews_corrcoef(labels, guesses))


def pearson(labels: Values, guesses: Values) -> float:
    """The correlation of numbers; 0 where all guesses are alike, which have none."""
    return 0.0 if _constant(labels, guesses) else float(100 * stats.pearsonr(labels, guesses).statistic)


def spearman(labels: Values, guesses: Values) -> float:
    """The correlation of their ranks; 0 where all guesses are alike."""
    return 0.0 if _constant(labels, guesses) else float(100 * stats.spearmanr(labels, guesses).statistic)


def _constant(*values: Values) -> bool:
    return any(len(np.unique(one)) < 2 for one in values)


METRICS: Mapping[str, Callable[[Values, Values], float]] = MappingProxyType(
    {"accuracy": accuracy, "f1": f1, "matthews": matthews, "pearson": pearson, "spearman": spearman}
)
"""By name."""


def task_facts(texts: Texts) -> Facts:
    """Metrics of the most frequent label, or of the mean of numbers, and the loss of who knows the frequencies."""
    task = TASKS[texts.task]
    labels, trained = np.array(texts.held_out.labels), texts.train.labels
    counts = Counter(trained)
    same = fmean(trained) if task.classes == 1 else counts.most_common(1)[0][0]
    guesses = np.full(len(labels), same)
    majority = {name: METRICS[name](labels, guesses) for name in task.metrics}
    if task.classes == 1:
        loss = float(np.mean((labels - same) ** 2))
    else:
        # A label that was never trained on would cost without end; one more of each bounds it.
        total = len(trained) + task.classes
        loss = -fmean(np.log((counts[label] + 1) / total) for label in texts.held_out.labels)
    return Facts(texts.task, texts.what, majority, float(loss), texts.ceiling)


POINTS = 20  # mean losses of a run, over as many parts of it
CLIPPED = 1.0  # norm of the gradient, at most
_TESTED = 64  # sentences at a time


@dataclass(frozen=True)
class Recipe:
    """How a network is trained on a task: AdamW, whose rate grows linearly and then falls linearly to 0.

    Attributes:
        batch: sentences, or pairs.
        rate: the most.
        epochs: through the sentences.
        length: of sentences in tokens, at most.
        steps: at which it ends before the epochs do; 0: not at all.
        warm_up: the part of the steps in which the rate grows.
        weight_decay: of matrices.
        second: AdamW's second beta.
        words: whether sentences are numbered by their words, and the weights drawn.
    """

    batch: int
    rate: float
    epochs: int
    length: int
    steps: int = 0
    warm_up: float = 0.06
    weight_decay: float = 0.1
    second: float = 0.98
    words: bool = False

    def settings(self) -> dict[str, Any]:
        """By name."""
        return asdict(self)

    def count(self, examples: int) -> int:
        """Steps."""
        found = self.epochs * -(-examples // self.batch)
        return min(found, self.steps) if self.steps else found


def train(
    blank: Run,
    build: Callable[[], nn.Module],
    task: Task,
    encoded: Encoded,
    recipe: Recipe,
    device: torch.device,
) -> Run:
    """Trains a network and tests it.

    Args:
        blank: which run, without findings.
        build: makes the network with torch's generator.
        task: what is asked.
        encoded: its sentences.
        recipe: of the training.
        device: to train on.

    Raises:
        DoesNotApply: the way is none for this network.
    """
    start = time.perf_counter()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(blank.seed)
        model = build().to(device)
        first = encoded.train.batch(torch.arange(min(recipe.batch, len(encoded.train))), device)
        subject = Subject(model, first, _loss, blank.model, blocks(model))
        forward, surroundings = ways.ready(blank.way, subject, blank.seed)

        def step(batch: dict[str, Tensor], number: int) -> Tensor:
            torch.manual_seed(1_000_003 * blank.seed + number)
            with surroundings():
                loss = _loss(forward(**batch))
            loss.backward()
            return loss.detach()

        steps = recipe.count(len(encoded.train))
        optimizer = _optimizer(model, recipe)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: _part_of_rate(done, steps, recipe))
        losses: list[Tensor] = []
        for number, batch in enumerate(_batches(encoded.train, recipe, steps, blank.seed, device)):
            optimizer.zero_grad()
            losses.append(step(batch, number))
            if blank.way == ways.CONTROL:
                for parameter in model.parameters():
                    parameter.grad = torch.zeros_like(parameter)
            nn.utils.clip_grad_norm_(model.parameters(), CLIPPED)
            optimizer.step()
            schedule.step()
        original, stored = _bytes(blank.way, model, lambda: step(first, steps), lambda: _loss(model(**first)))
        held_out, guesses = _tested(model, encoded.held_out, task, device)
    labels = encoded.held_out.labels.numpy()
    return replace(
        blank,
        losses=_points(losses),
        held_out=held_out,
        metrics={name: METRICS[name](labels, guesses.numpy()) for name in task.metrics},
        original_bytes=original,
        stored_bytes=stored,
        seconds=time.perf_counter() - start,
    )


def _loss(output: object) -> Tensor:
    loss = getattr(output, "loss", None)
    assert isinstance(loss, Tensor)
    return loss


def _optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() <= 1]  # biases, and norms
    groups = [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, recipe.rate, (0.9, recipe.second), 1e-6)


def _part_of_rate(done: int, steps: int, recipe: Recipe) -> float:
    warm_up = max(1, round(recipe.warm_up * steps))
    return min((done + 1) / warm_up, (steps - done) / max(1, steps - warm_up))


def _batches(
    examples: Examples, recipe: Recipe, steps: int, seed: int, device: torch.device
) -> Iterator[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    while steps > 0:
        for places in torch.randperm(len(examples), generator=generator).split(recipe.batch)[:steps]:
            yield examples.batch(places, device)
            steps -= 1


def _bytes(
    way: str, model: nn.Module, step: Callable[[], Tensor], forward: Callable[[], Tensor]
) -> tuple[int | None, int | None]:
    """Of the first batch: what autograd alone keeps, and what is kept instead; ``None`` where the way does not say."""
    if way == PLAIN:
        return saved_bytes(model, forward), None
    if not ways.stores(way):
        return None, None
    step()
    report = integrations.compression(model).report()
    return None, report.stored_bytes


@torch.no_grad()
def _tested(model: nn.Module, examples: Examples, task: Task, device: torch.device) -> tuple[float, Tensor]:
    """The mean loss, and what is guessed."""
    model.eval()
    total, guesses = 0.0, []
    for places in torch.arange(len(examples)).split(_TESTED):
        output = model(**examples.batch(places, device))
        total += len(places) * _loss(output).item()
        guesses.append((output.logits[:, 0] if task.classes == 1 else output.logits.argmax(1)).cpu())
    return total / len(examples), torch.cat(guesses)


def _points(losses: list[Tensor]) -> list[float]:
    """Means over parts of a run; of the last one, in which the rate has fallen, too."""
    return [float(part.mean()) for part in torch.stack(losses).cpu().tensor_split(min(POINTS, len(losses)))]
