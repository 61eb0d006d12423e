"""What ``python -m bench gnn`` records."""

from __future__ import annotations

from bench.models.graph_networks import MODELS
from bench.results.entry import Entry, at, part, series
from bench.results.record import Kind, order_by
from bench.runner.memory import PLAIN, Memory
from bench.suites.gnn.kernel_time import KernelTime
from integrations import LEVELS

BLOCK = 5  # epochs a turn
FINAL = 10  # epochs that the final training loss is the mean of
REFERENCE = PLAIN


@part("train", "a network that was trained at a level, in turns with full precision")
class Curve(Entry):
    """One run; level ``"L0"`` is full precision."""

    model: str = at("of bench.models.graph_networks.MODELS")
    level: str = at("of integrations.LEVELS")
    seed: int = at("of weights, dropout and rounding")
    losses: list[float] = series("nats", "of training, of each epoch, the mean over its steps")
    validation: list[float] = series("%", "accuracies, or micro-F1, after each epoch")
    test: list[float] = series("%", "the same of the nodes for test")
    block_seconds: list[float] = series("s", f"of each turn of {BLOCK} epochs: forward, loss, backward, optimizer")
    plain_seconds: list[float] = series("s", "the same of full precision, in the same turns")

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


KIND = Kind(
    "gnn",
    (Curve, Memory, KernelTime),
    {
        "data": "data",
        "recipe": "recipe",
        "device": "device",
        "dataset": "name of the graph",
        "measure": "measure of what is guessed",
    },
    order=order_by(model=MODELS, level=LEVELS),
    packages=("torch-geometric",),
)
