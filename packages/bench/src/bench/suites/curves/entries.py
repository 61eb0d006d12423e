"""What ``python -m bench curves`` records."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from bench.results.entry import Entry, at, metric, part, series
from bench.results.record import Kind, order_by
from bench.runner.memory import Memory
from bench.suites.curves.tasks import TASKS
from bench.ways.general import PLAIN, Way, compressed
from bench.ways.general import WAYS as GENERAL

LEAST = "plan, least, error 0.1"
WAYS: Mapping[str, Way] = MappingProxyType(
    {
        **{name: GENERAL[name] for name in (PLAIN, "L1", "lean")},
        LEAST: Way(partial(compressed, None, memory="least", error=0.1), bound=0.1),
    }
)
"""By name."""


@part("training", "a task, learned in one way")
class Trained(Entry):
    """One way with one seed. A seed gives all ways the same weights, batches and dropout."""

    task: str = at("its name in TASKS")
    way: str = at("in words")
    seed: int = at("of weights, batches and dropout")
    losses: list[float] = series("nats", "of training: means over as many parts of the steps")
    held_out: float | None = metric("nats", "the loss of what was not trained on")
    accuracy: float = metric("%", "of the same", default=0.0)
    error: float = metric("", "of the whole gradient in a step after the training, relative", default=0.0)

    @property
    def end(self) -> float:
        """The training loss of the last part."""
        return self.losses[-1]


KIND = Kind(
    "curves",
    (Memory, Trained),
    {"size": "size", "device": "device"},
    {"tasks": "data, model or training"},
    order=order_by(task=TASKS, way=WAYS, seed=None),
    packages=("transformers", "timm", "torch-geometric"),
)
