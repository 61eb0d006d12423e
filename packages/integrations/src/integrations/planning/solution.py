"""``Solution``: what a plan says of every value, and what that takes; what is known without another search."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Self, TypeVar

from actcore import simulate
from integrations.planning.bounds import ONLY_RECOMPUTE, Bounds
from integrations.planning.budget import Budget
from integrations.planning.choice import Choice
from integrations.planning.menus import Menus
from integrations.planning.planned_segments import PlannedSegment, planned_segments
from integrations.planning.problem import training_step
from integrations.rules.levels import Level
from integrations.rules.stores import Store
from integrations.step.capturing.loss import Loss
from integrations.step.graphs.graph import Graph
from integrations.step.graphs.schedule import Schedule

Objective = Literal["peak", "paper"]

UNBOUNDED = Bounds(error=0.0, stores=ONLY_RECOMPUTE)
"""Of a plan that only says what is recomputed, and of that what has the least peak."""


@dataclass(frozen=True)
class Solution(ABC):
    """A choice of how values wait for backward, among those that none other beats. Its fields are the attributes of
    ``Plan``, which says what they are."""

    model: str
    graph: Graph
    choice: Choice
    front: tuple[Choice, ...]
    peak_bound: int
    exact: bool
    bounds: Bounds = UNBOUNDED
    objective: Objective = "peak"
    capture_seconds: float = field(default=0.0, compare=False)
    search_seconds: float = field(default=0.0, compare=False)
    loss: Loss | None = field(default=None, repr=False, compare=False)
    menus: Menus | None = field(default=None, repr=False)
    rounded: Graph | None = field(default=None, repr=False)
    rounded_menus: Menus | None = field(default=None, repr=False)
    level: Level | None = None
    also: tuple[Self, ...] = field(default=(), repr=False)
    measured: float | None = None
    unmeasured: str = ""
    others: dict[Any, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    @property
    def memory(self) -> Budget | None:
        """The activation peak that was asked for: the most that forward and backward have allocated at once beyond what
        is still allocated after them."""
        return self.bounds.memory

    @property
    def budget(self) -> Budget | None:
        """``memory``, as ``integrations.checkpoint.plan`` calls it."""
        return self.memory

    @property
    def time(self) -> float | None:
        """The most time that was asked for, in plain steps."""
        return self.bounds.time

    @property
    def error(self) -> float:
        """The most relative error of the gradient that was asked for; 0 at a level, too."""
        return self.bounds.error or 0.0

    @property
    def stores(self) -> tuple[str, ...]:
        """The ways of ``bounds.WAYS`` in which values may wait, as they were asked for."""
        return self.bounds.stores

    @property
    def compressed(self) -> bool:
        """Whether it is for a model at a level, as all its peaks are then."""
        return self.level is not None

    @property
    def followed(self) -> Graph:
        """The graph that the choice is of."""
        return self.graph_of(self.choice)

    def graph_of(self, choice: Choice) -> Graph:
        """The graph that a choice of the front is of."""
        return self.rounded if choice.rounded and self.rounded is not None else self.graph

    def menus_of(self, choice: Choice) -> Menus:
        """The stores of its values."""
        found = self.rounded_menus if choice.rounded and self.rounded is not None else self.menus
        return Menus.none(len(self.graph_of(choice).values)) if found is None else found

    def store_of(self, value: int) -> Store | None:
        """The store in which what the memory of a value of ``followed`` holds in the end waits for backward, be it
        kept or recomputed; ``None`` where it waits as it is, or as the level says."""
        return self.schedule.store_of(value)

    @property
    def kept(self) -> tuple[int, ...]:
        """Numbers of the graph's values that are kept."""
        return self.choice.kept

    @property
    def peak(self) -> int:
        """Bytes of the activation peak."""
        return self.choice.peak

    @property
    def plain_peak(self) -> int:
        """Those of the step that keeps everything as it is; of a plan for a level, as that stores it."""
        return self.front[-1].peak if self.menus is None or self.compressed else self.uncompressed_peak

    @property
    def cut(self) -> float:
        """What is saved of the plain step's activation peak, as a fraction of it."""
        return 1 - self.peak / self.plain_peak if self.plain_peak else 0.0

    @property
    def seconds(self) -> float:
        """Of the operators that backward repeats, and of storing and restoring, by the models of their times."""
        return self.choice.seconds

    @property
    def plain_seconds(self) -> float:
        """Of forward and backward, by that model."""
        return self.graph.seconds

    @property
    def overhead(self) -> float:
        """The time that is added, as a fraction of the plain step's, by that model."""
        return self.seconds / self.plain_seconds if self.plain_seconds else 0.0

    @property
    def flat(self) -> Self:
        """The plan itself; where its checkpoints are nested, the one of the front whose are not, with the next peak."""
        if self.choice.held is None:
            return self
        flat = [choice for choice in self.front if choice.held is None and choice.peak >= self.peak]
        return self.choosing(flat[0], self.bounds)

    @cached_property
    def schedule(self) -> Schedule:
        """What the choice means for each operator."""
        return self.choice.schedule(self.followed)

    @cached_property
    def schedule_of_any_sizes(self) -> Schedule:
        """The same, for operators of any shapes."""
        return self.schedule.of_any_sizes()

    @cached_property
    def segments(self) -> tuple[PlannedSegment, ...]:
        """What is repeated, in the order of the forward. An inner segment is repeated from what others hold, too."""
        return planned_segments(self.followed, self.schedule)

    @property
    @abstractmethod
    def accumulating(self) -> Self:
        """The plan for steps that find gradients there, to which they add theirs."""

    @abstractmethod
    def within(self, memory: Budget | None = None, time: float | None = None, error: float | None = None) -> Self:
        """The plan that is best within these bounds."""

    @property
    def is_bounded(self) -> bool:
        """Whether memory or time was asked for."""
        return self.memory is not None or self.time is not None

    def choosing(self, choice: Choice, bounds: Bounds) -> Self:
        """The plan of another choice of these graphs, made for these bounds, with this front and the same plans for
        other states of the gradients."""
        measured = (self.measured, self.unmeasured) if choice == self.choice else (None, "")
        return self._sharing(choice=choice, bounds=bounds, measured=measured[0], unmeasured=measured[1])

    def with_also(self, also: Iterable[Self]) -> Self:
        """The plan with these plans for other inputs."""
        return self._sharing(also=tuple(also))

    def _sharing(self, **changes: Any) -> Self:
        """The plan with other fields, of the same graphs, so that what else was planned of these goes with it."""
        found = replace(self, **changes)
        found.__dict__["others"] = self.others
        return found

    @cached_property
    def uncompressed_peak(self) -> int:
        """Bytes of the activation peak of the model by itself."""
        return simulate(training_step(self.graph), [True] * len(self.graph.values)).peak - self.graph.gradients


Found = TypeVar("Found", bound=Solution)
