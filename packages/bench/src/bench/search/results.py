"""``SearchResults``: everything ``python -m bench search`` found, trial by trial."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.machine import Machine


@dataclass(frozen=True)
class Trial:
    """Some training steps of one model within the limit.

    Attributes:
        value: the number that is searched.
        fits: whether all steps were made.
        failure: what went wrong; empty otherwise.
        crashed: whether what went wrong was something else than too little memory.
        does_not_apply: why the way is none for this model; empty otherwise.
        finite: whether each step's loss was.
        seconds: that the trial took, the making of the model included.
        step_seconds: of the steps after the warm-up.
        items: images, sentences or nodes of a step.
        commit: that it was made with.
        reserved_bytes: the most that CUDA's allocator has taken of the device; ``None`` on the CPU.
        outside_bytes: what else was in use of the device at the end: contexts, what libraries take by themselves, other
            processes; ``None`` on the CPU, and for what did not fit.
    """

    value: int
    fits: bool = False
    failure: str = ""
    crashed: bool = False
    does_not_apply: str = ""
    finite: bool = True
    seconds: float = 0.0
    step_seconds: list[float] = field(default_factory=list)
    items: int = 0
    commit: str = ""
    reserved_bytes: int | None = None
    outside_bytes: int | None = None

    @property
    def throughput(self) -> float | None:
        """Items per second in the median step; ``None`` where none was timed."""
        return self.items / statistics.median(self.step_seconds) if self.step_seconds else None


@dataclass(frozen=True)
class Search:
    """The largest number at which a model trains in one way, within the limit.

    Attributes:
        dimension, way: names in ``dimensions.NAMES`` and ``systems.ways.WAYS``.
        title: the model and the number in words.
        items: what a step is counted by.
        memory_limit: bytes that training may take.
        largest: the largest number found; ``None`` where none fits, and before the search has ended.
        capped: whether it is the largest that was to be tried.
        resolution: by how much, relatively, the largest may be missed; 0: not at all.
        ended: whether the search has.
        trials: in the order in which they were made. A plain search's hold the proofs, too: trials at the largest
            numbers of other ways.
        optimizer: that takes the steps; empty in older files.
    """

    dimension: str
    way: str
    title: str = ""
    items: str = "items"
    memory_limit: int = 0
    largest: int | None = None
    capped: bool = False
    resolution: float = 0.0
    ended: bool = False
    trials: list[Trial] = field(default_factory=list)
    optimizer: str = ""

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
    def does_not_apply(self) -> str:
        """Why the way is none for this model; empty otherwise."""
        return next((one.does_not_apply for one in self.trials if one.does_not_apply), "")

    @property
    def failure(self) -> str:
        """What crashed, so that the search has no end; empty otherwise."""
        return "" if self.ended else next((one.failure for one in reversed(self.trials) if one.crashed), "")


@dataclass(frozen=True)
class SearchResults:
    """What ``python -m bench search`` found.

    Attributes:
        machine: where and with what.
        device: ``"cpu"`` or ``"cuda"``.
        memory_limits: bytes that training may take, by family.
        seed: of weights and inputs.
        searches: by dimension and way.
        skipped: what was left out, and why.
        seconds: that it took, what was taken up included.
    """

    machine: Machine
    device: str
    memory_limits: dict[str, int]
    seed: int = 0
    searches: list[Search] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def search(self, dimension: str, way: str) -> Search | None:
        """Of a dimension, in a way."""
        return next((one for one in self.searches if (one.dimension, one.way) == (dimension, way)), None)

    @property
    def dimensions(self) -> list[str]:
        """Those of which there are searches, in order."""
        return list(dict.fromkeys(search.dimension for search in self.searches))

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> SearchResults:
        """From what ``dataclasses.asdict`` made of one."""
        fields = dict(content)
        searches = [
            Search(**{**search, "trials": [Trial(**trial) for trial in search["trials"]]})
            for search in fields.pop("searches")
        ]
        return cls(machine=Machine(**fields.pop("machine")), searches=searches, **fields)
