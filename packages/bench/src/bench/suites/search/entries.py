"""What ``python -m bench search`` records, trial by trial."""

from __future__ import annotations

import statistics

from bench.results.entry import Entry, at, metric, nested, numbers, part, series
from bench.results.record import Kind, Record, order_by
from bench.suites.search.dimensions import NAMES
from bench.ways.decoders import ALL_WAYS
from bench.ways.general import PLAIN


@numbers
class Trial:
    """Some training steps of one model within the limit."""

    value: int = metric("", "the number that is searched", default=0)
    fits: bool = metric("", "whether all steps were made", default=False)
    failure: str = metric("", "what went wrong; empty otherwise", default="")
    crashed: bool = metric("", "whether that was something else than too little memory", default=False)
    does_not_apply: str = metric("", "why the way is none for this model; empty otherwise", default="")
    finite: bool = metric("", "whether each step's loss was", default=True)
    seconds: float = metric("s", "that the trial took, the making of the model included", default=0.0)
    step_seconds: list[float] = series("s", "of the steps after the warm-up")
    items: int = metric("", "images, sentences, nodes or tokens of a step", default=0)
    commit: str = metric("", "that it was made with", default="")
    reserved_bytes: int | None = metric("bytes", "the most that CUDA's allocator has taken of the device")
    outside_bytes: int | None = metric("bytes", "what else was in use of the GPU at the end, by whomever")

    @property
    def throughput(self) -> float | None:
        """Items per second in the median step; ``None`` where none was timed."""
        return self.items / statistics.median(self.step_seconds) if self.step_seconds else None


@part("search", "the largest number at which a model trains in one way, within the limit")
class Search(Entry):
    """One dimension in one way. A plain search's trials hold the proofs, too: those at other ways' largest numbers."""

    dimension: str = at("what is searched")
    way: str = at("how the model is trained")
    title: str = metric("", "the model and the number in words", default="")
    items: str = metric("", "what a step is counted by", default="items")
    memory_limit: int = metric("bytes", "that training may take", default=0)
    largest: int | None = metric("", "the largest number found; none where none fits, and before the search has ended")
    capped: bool = metric("", "whether it is the largest that was to be tried", default=False)
    resolution: float = metric("", "by how much, relatively, it may be missed; 0: not at all", default=0.0)
    ended: bool = metric("", "whether the search has", default=False)
    trials: list[Trial] = nested(Trial, "in the order in which they were made", many=True)
    optimizer: str = metric("", "that takes the steps", default="")

    def trial(self, value: int | None) -> Trial | None:
        """The last at a number; ``None`` where there is none."""
        return next((one for one in reversed(self.trials) if one.value == value), None)

    @property
    def best(self) -> Trial | None:
        """The trial at the largest number."""
        return self.trial(self.largest)

    @property
    def most(self) -> int | None:
        """The largest number that was seen to fit: the least that the largest can be where the search was cut short."""
        return max((one.value for one in self.trials if one.fits), default=None)

    @property
    def refusal(self) -> str:
        """Why the way is none for this model; empty otherwise."""
        return next((one.does_not_apply for one in self.trials if one.does_not_apply), "")

    @property
    def crash(self) -> str:
        """What crashed, so that the search has no end; empty otherwise."""
        return "" if self.ended else next((one.failure for one in reversed(self.trials) if one.crashed), "")


KIND = Kind(
    "search",
    (Search,),
    {"device": "device", "seed": "seed"},
    {"memory_limits": "memory limit"},
    packages=("timm", "transformers", "torch-geometric"),
    order=order_by(dimension=NAMES, way=ALL_WAYS),
)


def find_search(record: Record, dimension: str, way: str) -> Search | None:
    """Of a dimension, in a way."""
    return record.find(Search, dimension=dimension, way=way)


def times_plain(record: Record, search: Search) -> float | None:
    """A way's largest number over the plain one's; ``None`` where one is not known."""
    plain = find_search(record, search.dimension, PLAIN)
    return search.largest / plain.largest if plain and plain.largest and search.largest else None


def relative_throughput(record: Record, search: Search) -> float | None:
    """Items per second at a way's largest number, over the plain way's at its own; ``None`` where one is not known."""
    plain = find_search(record, search.dimension, PLAIN)
    reference = plain.best if plain else None
    if search.best is None or reference is None or not reference.throughput or not search.best.throughput:
        return None
    return search.best.throughput / reference.throughput


def proof(record: Record, search: Search) -> Trial | None:
    """The plain trial at a way's largest number, if that is more than the plain way's."""
    plain = find_search(record, search.dimension, PLAIN)
    if plain is None or not search.largest or search.largest <= (plain.largest or 0):
        return None
    return plain.trial(search.largest)
