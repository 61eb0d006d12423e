"""What ``python -m bench text`` records."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from bench.results.entry import Entry, Timed, at, metric, part, series, table
from bench.results.record import Kind, Record, paired
from bench.results.statistics import Difference
from bench.ways.general import PLAIN


@part("accuracy", "a network that was trained on a task in one way")
class Run(Entry):
    """One training."""

    model: str = at("the network")
    task: str = at("of GLUE, or generated")
    way: str = at("how it is trained")
    seed: int = at("of weights, order of the batches and dropout")
    recipe: dict[str, Any] = table("", "of the training, by name of the setting")
    losses: list[float] = series("nats", "of training, means over equal parts of it")
    held_out: float = metric("nats", "the mean loss of what was not trained on, after the last step", default=0.0)
    metrics: dict[str, float] = table("%", "of that, by name")
    original_bytes: int | None = metric("bytes", "of a plain run: what autograd keeps of a batch")
    stored_bytes: int | None = metric("bytes", "of a compressed one: what is kept instead")
    seconds: float = metric("s", "that it took", default=0.0)

    @property
    def done(self) -> bool:
        """Whether it came to its end."""
        return bool(self.losses)

    @property
    def fine_tuned(self) -> bool:
        """Whether it began with pretrained weights and went through all epochs, as what was published did."""
        return not (self.recipe.get("words") or self.recipe.get("steps"))


@part("task", "what there is to know of a task before anything is trained")
class Facts(Entry):
    """One task."""

    task: str = at("its name")
    what: str = metric("", "its sentences in words", default="")
    majority: dict[str, float] = table("%", "the metrics of who answers all alike, the most frequent label or the mean")
    frequency_loss: float = metric("nats", "held out, of who knows how frequent labels are, no more", default=0.0)
    ceiling: float | None = metric("%", "of the first metric; none where nobody knows it")


@part("steps", "memory and time of steps of a network in one way")
class Cell(Timed, Entry):
    """One network in one way."""

    model: str = at("the network")
    way: str = at("how it is trained")
    batch: int = at("sentences of its input")
    length: int = at("of these in tokens")
    original_bytes: int | None = metric("bytes", "of the plain network: what autograd keeps")
    stored_bytes: int | None = metric("bytes", "that are kept instead, as the report says")
    live_bytes: int | None = metric("bytes", "that live after the forward and did not before")
    peak_bytes: int | None = metric("bytes", "the most of a step, less what was there before, gradients among it")
    whole_bytes: int | None = metric("bytes", "the same of a step that makes the gradients, with them")
    seconds: list[float] = series("s", "of steps in this way")
    plain_seconds: list[float] = series("s", "of plain ones in turn")

    @property
    def ratio(self) -> float | None:
        """A step's time over the plain one's; ``None`` where not timed. Plain ones differ by noise alone."""
        return 1.0 if self.seconds and self.way == PLAIN else super().ratio

    @property
    def throughput(self) -> float | None:
        """Sentences a second, forward and backward; ``None`` where not timed."""
        return self.batch / median(self.seconds) if self.seconds else None


KIND = Kind("text", (Facts, Run, Cell), {"device": "device"}, packages=("transformers",))


def finished(record: Record, model: str, task: str, way: str) -> list[Run]:
    """The runs that came to their end, by seed."""
    found = [run for run in record.of(Run, model=model, task=task, way=way) if run.done]
    return sorted(found, key=lambda run: run.seed)


def difference(record: Record, model: str, task: str, way: str, of: Callable[[Run], float]) -> Difference | None:
    """Of runs in a way from the plain ones of the same seeds; ``None`` where there are no pairs."""
    if way == PLAIN:
        return None
    return paired(finished(record, model, task, way), finished(record, model, task, PLAIN), of)


def smaller(record: Record, model: str, task: str, way: str) -> float | None:
    """How many times fewer bytes a batch's activations take than in a plain run; ``None`` where unknown."""
    original = [run.original_bytes for run in finished(record, model, task, PLAIN) if run.original_bytes]
    stored = [run.stored_bytes for run in finished(record, model, task, way) if run.stored_bytes]
    return median(original) / median(stored) if original and stored else None


def trained(record: Record) -> list[tuple[str, str]]:
    """Networks and tasks of which there are runs, in order."""
    return list(dict.fromkeys((run.model, run.task) for run in record.of(Run)))
