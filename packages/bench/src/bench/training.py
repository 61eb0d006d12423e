"""Training runs side by side: the same model and seed at several levels, a few epochs each in turn.

Paired runs draw the same initial weights and the same dropout masks: each has its own state of torch's generators, set
from the seed. Taking turns makes them comparable in time, too: whatever else the machine does hits all of them, and
ratios are taken within a round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from bench.data import Graph
from bench.models import MODELS
from integrations.pyg import compress_model

LEARNING_RATE = 0.01
WEIGHT_DECAY = 5e-4
BLOCK = 5  # epochs a turn
FINAL = 10  # epochs that the final training loss is the mean of


@dataclass
class Curve:
    """What one run did.

    Attributes:
        model, level, seed: which run; level ``"L0"`` is full precision.
        losses: training loss (cross-entropy with dropout) of each epoch.
        validation, test: accuracies after each epoch, in percent.
        block_seconds: seconds of each turn of ``BLOCK`` epochs: forward, loss, backward and optimizer step of each.
    """

    model: str
    level: str
    seed: int
    losses: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    test: list[float] = field(default_factory=list)
    block_seconds: list[float] = field(default_factory=list)

    @property
    def epoch_seconds(self) -> list[float]:
        """Mean seconds of an epoch in each turn; the last turn may be shorter than ``BLOCK``."""
        epochs = len(self.losses)
        turns = (min(BLOCK, epochs - start) for start in range(0, epochs, BLOCK))
        return [seconds / turn for seconds, turn in zip(self.block_seconds, turns, strict=True)]

    @property
    def best_epoch(self) -> int:
        """The first epoch, counted from 0, with the best validation accuracy."""
        return self.validation.index(max(self.validation))

    @property
    def test_accuracy(self) -> float:
        """Test accuracy in percent after the best epoch."""
        return self.test[self.best_epoch]

    @property
    def final_loss(self) -> float:
        """Mean training loss of the last ``FINAL`` epochs: one epoch's dropout would decide that of the last alone."""
        last = self.losses[-FINAL:]
        return sum(last) / len(last)


class Run:
    """A model in training.

    Args:
        model: one of ``bench.models.MODELS``.
        level: one of ``integrations.LEVELS``; ``None`` leaves the model untouched.
        seed: decides initial weights, dropout and the rounding of compression.
        graph: on the device to train on.
    """

    def __init__(self, model: str, level: str | None, seed: int, graph: Graph) -> None:
        self.graph = graph
        self.curve = Curve(model, level or "L0", seed)
        self._devices = [graph.x.device] if graph.x.is_cuda else []
        with torch.random.fork_rng(self._devices):
            torch.manual_seed(seed)
            self.network = MODELS[model](graph.x.shape[1], graph.classes).to(graph.x.device)
            self._generators = self._generator_states()
        if level is not None:
            compress_model(self.network, level=level, seed=seed)
        self._optimizer = torch.optim.Adam(self.network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)

    def train(self, epochs: int) -> None:
        """Trains some more epochs, and evaluates after each. Only training is timed."""
        seconds = 0.0
        with self._own_generators():
            for _ in range(epochs):
                start = self._now()
                loss = self._step()
                seconds += self._now() - start
                self.curve.losses.append(loss.item())
                self._evaluate()
        self.curve.block_seconds.append(seconds)

    def _step(self) -> torch.Tensor:
        graph = self.graph
        self.network.train()
        self._optimizer.zero_grad()
        loss = F.cross_entropy(self.network(graph.x, graph.edge_index)[graph.train], graph.y[graph.train])
        loss.backward()
        self._optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def _evaluate(self) -> None:
        graph = self.graph
        self.network.eval()
        right = self.network(graph.x, graph.edge_index).argmax(1) == graph.y
        for mask, accuracies in ((graph.validation, self.curve.validation), (graph.test, self.curve.test)):
            accuracies.append(100 * int(right[mask].sum()) / int(mask.sum()))

    def _now(self) -> float:
        for device in self._devices:
            torch.cuda.synchronize(device)
        return time.perf_counter()

    @contextmanager
    def _own_generators(self) -> Iterator[None]:
        with torch.random.fork_rng(self._devices):
            cpu, *cuda = self._generators
            torch.set_rng_state(cpu)
            for device, state in zip(self._devices, cuda, strict=True):
                torch.cuda.set_rng_state(state, device)
            yield
            self._generators = self._generator_states()

    def _generator_states(self) -> list[torch.Tensor]:
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in self._devices)]


def train_in_turn(
    model: str, levels: Sequence[str | None], seed: int, graph: Graph, epochs: int, advance: Callable[[str, int], None]
) -> list[Curve]:
    """Trains one model at several levels, ``BLOCK`` epochs each in turn.

    Args:
        model, seed, graph: as for ``Run``.
        levels: of each run.
        epochs: of each run.
        advance: called with what was trained and for how many epochs, after each turn.

    Returns:
        The curves, in the order of ``levels``.
    """
    runs = [Run(model, level, seed, graph) for level in levels]
    for start in range(0, epochs, BLOCK):
        turn = min(BLOCK, epochs - start)
        # Every run is first in some rounds: what runs first finds the caches as the others' evaluations left them.
        shift = start // BLOCK % len(runs)
        for run in runs[shift:] + runs[:shift]:
            run.train(turn)
            advance(f"{model} {run.curve.level}, seed {seed}", turn)
    return [run.curve for run in runs]


@contextmanager
def deterministic(device: torch.device) -> Iterator[None]:
    """Same seed, same bits. CPU kernels are deterministic for a number of threads; CUDA's are asked to be."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(before or device.type == "cuda")
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
