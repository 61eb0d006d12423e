"""``Solution``: what a plan says of every value and what that takes: all that is known without another search."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Self, TypeVar

from integrations.capture.graphs.graph import Graph
from integrations.capture.graphs.schedule import Schedule
from integrations.capture.loss import Loss
from integrations.planner.bounds import ONLY_RECOMPUTE, Bounds
from integrations.planner.budget import Budget, allowed_bytes
from integrations.planner.choice import Choice
from integrations.planner.chunked import ChunkedLoss
from integrations.planner.host_copies import host_copies
from integrations.planner.planned_segments import PlannedSegment, planned_segments
from integrations.planner.problem import Entries, SimulatedStep, all_kept, chosen_entries
from integrations.planner.storage_candidates import StorageCandidates
from integrations.policies.levels import Level
from integrations.policies.stores import Store

Objective = Literal["peak", "paper"]

UNBOUNDED = Bounds(error=0.0, stores=ONLY_RECOMPUTE)
"""The bounds of a plan that only says what is recomputed, at the least peak."""


@dataclass(frozen=True)
class Solution(ABC):
    """A choice of how values wait for backward, among those that no other beats. ``Plan`` describes its fields."""

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
    candidates: StorageCandidates | None = field(default=None, repr=False)
    rounded: Graph | None = field(default=None, repr=False)
    rounded_candidates: StorageCandidates | None = field(default=None, repr=False)
    level: Level | None = None
    also: tuple[Self, ...] = field(default=(), repr=False)
    measured: float | None = None
    unmeasured: str = ""
    chunking: str = field(default="", repr=False, compare=False)
    chunked: ChunkedLoss | None = None
    earlier: tuple[int, ...] = field(default=(), repr=False)
    others: dict[Any, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    @property
    def head(self) -> str | None:
        """The path of the layer whose logits are never whole; ``None`` if the plan does not compute the loss in
        chunks."""
        return None if self.chunked is None else self.chunked.head

    @property
    def memory(self) -> Budget | None:
        """The activation peak that was asked for: the most that forward and backward may have allocated at once beyond
        what is still allocated after them."""
        return self.bounds.memory

    @property
    def budget(self) -> Budget | None:
        """``memory``, as ``integrations.checkpoint.plan`` calls it."""
        return self.memory

    @property
    def time(self) -> float | None:
        """The bound on the time, as a multiple of the plain step's."""
        return self.bounds.time

    @property
    def error(self) -> float:
        """The bound on the gradient's relative error; 0 at a level, too."""
        return self.bounds.error or 0.0

    @property
    def stores(self) -> tuple[str, ...]:
        """The ways of ``bounds.WAYS`` in which values may wait, as they were asked for."""
        return self.bounds.stores

    @property
    def compressed(self) -> bool:
        """Whether it is for a model at a level, whose peaks count what the level stores."""
        return self.level is not None

    @property
    def followed(self) -> Graph:
        """The graph to which the choice belongs."""
        return self.graph_of(self.choice)

    def graph_of(self, choice: Choice) -> Graph:
        """The graph to which a choice of the front belongs."""
        return self.rounded if choice.rounded and self.rounded is not None else self.graph

    def candidates_for(self, choice: Choice) -> StorageCandidates:
        """The candidates of the choice's graph."""
        found = self.rounded_candidates if choice.rounded and self.rounded is not None else self.candidates
        return StorageCandidates.none(len(self.graph_of(choice).values)) if found is None else found

    def store_of(self, value: int) -> Store | None:
        """The store in which what the memory of a value of ``followed`` holds in the end waits, whether kept or
        recomputed; ``None`` if it waits as it is, or as the level says."""
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
        """Bytes of the activation peak of the step that keeps everything; for a plan for a level, as the level stores
        it."""
        return self.front[-1].peak if self.candidates is None or self.compressed else self.uncompressed_peak

    @property
    def cut(self) -> float:
        """The part of the plain step's activation peak that is saved."""
        return 1 - self.peak / self.plain_peak if self.plain_peak else 0.0

    @property
    def seconds(self) -> float:
        """Modelled seconds of the operators that backward repeats, and of storing and restoring."""
        return self.choice.seconds

    @property
    def plain_seconds(self) -> float:
        """Modelled seconds of forward and backward without a plan."""
        return self.graph.seconds if self.chunked is None else self.chunked.seconds

    @property
    def overhead(self) -> float:
        """The modelled time that is added, as a part of the plain step's. It is negative if the loss in chunks saves
        more time than the plan adds."""
        added = self.seconds + self.graph.seconds - self.plain_seconds
        return added / self.plain_seconds if self.plain_seconds else 0.0

    def seconds_within(self, time: float) -> float:
        """The seconds that a choice may add where the step may take so many times the plain step's."""
        return time * self.plain_seconds - self.graph.seconds

    @property
    def flat(self) -> Self:
        """The plan itself; if its checkpoints are nested, the plan of the same front with the next peak whose
        checkpoints are not."""
        if self.choice.held is None:
            return self
        flat = [choice for choice in self.front if choice.held is None and choice.peak >= self.peak]
        return self.choosing(flat[0], self.bounds)

    @cached_property
    def schedule(self) -> Schedule:
        """What the choice means for each operator."""
        made = self.choice.schedule(self.followed)
        return replace(made, copies=host_copies(self.followed, self.choice, self.candidates_for(self.choice), made))

    @cached_property
    def schedule_of_any_sizes(self) -> Schedule:
        """The schedule for operators of any shapes."""
        return self.schedule.of_any_sizes()

    @cached_property
    def segments(self) -> tuple[PlannedSegment, ...]:
        """The segments, in the order of the forward. An inner segment also reads what others hold."""
        return planned_segments(self.followed, self.schedule)

    @property
    @abstractmethod
    def accumulating(self) -> Self:
        """The plan for steps that find gradients and add theirs to them."""

    @property
    @abstractmethod
    def clearing(self) -> Self:
        """The plan for steps that find gradients and clear them before backward."""

    @abstractmethod
    def within(self, memory: Budget | None = None, time: float | None = None, error: float | None = None) -> Self:
        """The plan that is best within these bounds."""

    def allowed(self, memory: Budget | None) -> int | None:
        """Return the bytes of activation peak that a budget allows; ``None`` if there is no budget, or it asks for the
        least memory.

        Raises:
            TypeError, ValueError: as ``resolve_bytes``.
        """
        return allowed_bytes(memory, self.whole)

    @property
    def is_bounded(self) -> bool:
        """Whether memory or time was asked for."""
        return self.memory is not None or self.time is not None

    def choosing(self, choice: Choice, bounds: Bounds) -> Self:
        """The plan with another choice, made for these bounds, with the same front and the same plans for other states
        of the gradients."""
        same = replace(choice, peak=self.choice.peak) == self.choice  # larger chunks of the loss change the peak alone
        measured = (self.measured, self.unmeasured) if same else (None, "")
        return self._sharing(choice=choice, bounds=bounds, measured=measured[0], unmeasured=measured[1])

    def with_bounds(self, bounds: Bounds) -> Self:
        """The plan with bounds that it keeps to as well, here and for other inputs."""
        return self._sharing(bounds=bounds)

    def with_also(self, also: Iterable[Self]) -> Self:
        """The plan with these plans for other inputs."""
        return self._sharing(also=tuple(also))

    def in_chunks(self, chunked: ChunkedLoss) -> Self:
        """The plan with its loss in such chunks."""
        return self._sharing(chunked=chunked)

    def with_context(self, plan: Self, **changes: Any) -> Self:
        """The plan with the loss and the earlier plans of another plan of the same step."""
        kept = {name: getattr(plan, name) for name in ("loss", "chunking", "chunked", "earlier")}
        return replace(self, **kept, **changes)

    def after(self, plans: Iterable[Self]) -> Self:
        """The plan with the plain steps of the model's earlier plans. Fractions are relative to the largest."""
        return self._sharing(earlier=tuple(map(max, zip(*(plan.wholes for plan in plans), strict=True))))

    def _sharing(self, **changes: Any) -> Self:
        """The fields to pass on to a plan of the same graphs, so that it shares what else was planned of them."""
        found = replace(self, **changes)
        found.__dict__["others"] = self.others
        return found

    @cached_property
    def uncompressed_peak(self) -> int:
        """Bytes of the activation peak of the model without compression."""
        return self._uncompressed(self.graph)

    def _uncompressed(self, graph: Graph) -> int:
        if self.chunked is not None:
            return self.chunked.accumulating_peak if graph.accumulates else self.chunked.peak
        return SimulatedStep(graph).peak(all_kept(graph))

    @cached_property
    def whole(self) -> int:
        """The bytes that a budget of 1.0 allows: ``uncompressed_peak``, or that of an earlier plan if it is larger. So
        another path of the forward, or a smaller batch, has no smaller budget."""
        state = 1 if self.graph.accumulates else 2 if self.graph.clears else 0
        return max([self.uncompressed_peak, *self.earlier[state : state + 1]])

    @cached_property
    def wholes(self) -> tuple[int, ...]:
        """``whole`` for each state of the gradients: for steps that find none, that add to them, and that clear them
        between forward and backward."""
        graph = self.graph
        graphs = (graph, graph.accumulating, graph.clearing) if graph.standing else (graph,) * 3
        found = map(self._uncompressed, graphs)
        return tuple(map(max, zip(found, self.earlier or (0, 0, 0), strict=True)))

    @cached_property
    def held(self) -> int:
        """Bytes that one forward holds until its backward."""
        return SimulatedStep(self.followed, self.candidates_for(self.choice)).held(self._entries)

    @cached_property
    def spare(self) -> tuple[int, ...]:
        """For each operator of the forward, the bytes that the peak leaves free while it runs; 0 if the plan has a
        store that is none of its candidates, whose size is not known."""
        candidates, ops = self.candidates_for(self.choice), len(self.followed.ops)
        if any(store not in (one.store for one in candidates.options[value]) for value, store in self.choice.stores):
            return (0,) * ops
        usage = SimulatedStep(self.followed, candidates).usage(self._entries)
        return tuple(usage.peak - nbytes for nbytes in usage.nbytes[:ops])

    @cached_property
    def peak_alone(self) -> int:
        """Bytes of the activation peak of one forward and its backward, without other forwards in flight. The backward
        may find gradients, as it does if it is not the first of those in flight."""
        graph = self.followed.with_in_flight(2)
        peak = SimulatedStep(graph, self.candidates_for(self.choice)).peak(self._entries) - self.held
        return max(peak, self.peak - (self.graph.in_flight - 1) * self.held)

    def plain_peak_with(self, count: int) -> int:
        """Return the bytes of the activation peak of the model without compression, with several forwards in flight, at
        least as many as are planned for."""
        if count not in self._plain_peaks:
            step = SimulatedStep(self.graph.with_in_flight(count))
            if self.chunked is None:
                peak = step.peak(all_kept(self.graph))
            else:
                more = (count - self.graph.in_flight) * step.held(all_kept(self.graph))
                peak = self.chunked.accumulating_peak + more
            self._plain_peaks[count] = peak
        return self._plain_peaks[count]

    @cached_property
    def _plain_peaks(self) -> dict[int, int]:
        """``plain_peak_with`` by count: each forward asks where more are in flight than planned for."""
        return {}

    @property
    def _entries(self) -> Entries:
        """The choice as ``actcore.simulate`` takes it."""
        candidates = self.candidates_for(self.choice)
        entries = chosen_entries(self.choice, candidates)
        return SimulatedStep(self.followed, candidates).at_level(entries.kept) if self.compressed else entries


Found = TypeVar("Found", bound=Solution)
