"""``Plan``: what of a model's forward is kept and what is made again, with what that takes; to be printed and saved."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self

from actcore import simulate
from integrations.checkpoint.capturing.loss import Loss
from integrations.checkpoint.graphs.entries import complete, fields_of, loaded, of_format
from integrations.checkpoint.graphs.graph import Graph
from integrations.checkpoint.graphs.schedule import Schedule
from integrations.checkpoint.planning.budget import Budget, bytes_of
from integrations.checkpoint.planning.choice import Choice
from integrations.checkpoint.planning.compressed_peak import StoredBytes
from integrations.checkpoint.planning.planned_segments import PlannedSegment, planned_segments
from integrations.checkpoint.planning.problem import training_step
from integrations.report import format_bytes

FORMAT = 2
"""In format 1 nothing was said of the bytes in which values are stored, nor by the graph of what decides."""
_WRITER = "Plan.to_json"
_ACCUMULATING = "accumulating"

Objective = Literal["peak", "paper"]


@dataclass(frozen=True)
class Plan:
    """A choice of what to keep, among those that none other beats. ``str(plan)`` is a table.

    Attributes:
        model: the class of the model.
        graph: its training step.
        choice: what is kept.
        front: all choices, by rising peak and falling seconds; the last repeats nothing.
        peak_bound: no choice has a lower peak.
        exact: whether all choices were tried, so that none is missing from the front.
        budget: that was asked for.
        objective: by which the choice was made, where that was not the budget.
        compressed: whether it is for a model whose tensors are stored in fewer bits, as all its peaks are then.
        capture_seconds, search_seconds: that planning took.
        stored: of a compressed one, the bytes in which values are stored, where they are known.
        loss: from the model's output to what is differentiated, for plans that are made for other inputs. It is not
            saved, so that those of a plan that was loaded start from what they would without one, with a warning.
    """

    model: str
    graph: Graph
    choice: Choice
    front: tuple[Choice, ...]
    peak_bound: int
    exact: bool
    budget: Budget | None = None
    objective: Objective = "peak"
    compressed: bool = False
    capture_seconds: float = field(default=0.0, compare=False)
    search_seconds: float = field(default=0.0, compare=False)
    stored: StoredBytes | None = field(default=None, repr=False)
    loss: Loss | None = field(default=None, repr=False, compare=False)
    _others: dict[str, Plan] = field(init=False, default_factory=dict, repr=False, compare=False)  # of the same graph

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
        """Those of the step that keeps everything."""
        return self.front[-1].peak

    @property
    def cut(self) -> float:
        """What is saved of the plain step's activation peak, as a fraction of it."""
        return 1 - self.peak / self.plain_peak if self.plain_peak else 0.0

    @property
    def seconds(self) -> float:
        """Of the operators that backward repeats, by the model of their times."""
        return self.choice.seconds

    @property
    def plain_seconds(self) -> float:
        """Of forward and backward, by that model."""
        return sum(op.seconds for op in self.graph.ops) + sum(step.seconds for step in self.graph.steps)

    @property
    def overhead(self) -> float:
        """The time that is added, as a fraction of the plain step's, by that model."""
        return self.seconds / self.plain_seconds if self.plain_seconds else 0.0

    @property
    def flat(self) -> Plan:
        """The plan itself; where its checkpoints are nested, the one of the front whose are not, with the next peak."""
        if self.choice.held is None:
            return self
        flat = [choice for choice in self.front if choice.held is None and choice.peak >= self.peak]
        return self._choosing(flat[0], self.budget)

    @cached_property
    def schedule(self) -> Schedule:
        """What the choice means for each operator."""
        return self.choice.schedule(self.graph)

    @cached_property
    def schedule_of_any_sizes(self) -> Schedule:
        """The same, for operators of any shapes."""
        return self.schedule.of_any_sizes()

    @cached_property
    def segments(self) -> tuple[PlannedSegment, ...]:
        """What is repeated, in the order of the forward. An inner segment is repeated from what others hold, too."""
        return planned_segments(self.graph, self.schedule)

    @property
    def accumulating(self) -> Plan:
        """The plan for steps that find gradients there, to which they add theirs, as all but the first do that
        accumulate gradients. It has the same budget; where that cannot be met, none, and the least peak. The activation
        peak is then all that the step takes beyond what was there. The search is made when this is first asked for."""
        if not self.graph.standing or (self.compressed and self.stored is None):
            return self
        if _ACCUMULATING not in self._others:
            self._others[_ACCUMULATING] = self._searched(self.graph.accumulating)
        found = self._others[_ACCUMULATING]
        if self.budget is None:
            return found
        try:
            return found.within(self.budget)
        except ValueError:
            return found

    def _searched(self, graph: Graph) -> Plan:
        """A plan of this kind for another graph."""
        from integrations.checkpoint.planning.compressed_plan import compressed_plan
        from integrations.checkpoint.planning.planner import plan_of_graph

        if self.stored is not None:
            return replace(compressed_plan(self.model, graph, self.stored), loss=self.loss)
        return replace(plan_of_graph(self.model, graph, self.objective), loss=self.loss)

    def within(self, budget: Budget) -> Plan:
        """The plan of the front that takes the least time within a budget.

        Args:
            budget: as in ``integrations.checkpoint.plan``; a fraction is one of the peak of a step that neither makes
                again nor compresses.

        Raises:
            TypeError, ValueError: as there.
        """
        allowed = bytes_of(budget, self._uncompressed_peak)
        fitting = [choice for choice in self.front if choice.peak <= allowed]
        if not fitting:
            raise ValueError(self._out_of_reach(budget))
        return self._choosing(fitting[-1], budget)

    def _choosing(self, choice: Choice, budget: Budget | None) -> Plan:
        """Another plan of the front, which has the same plans for other states of the gradients."""
        found = replace(self, choice=choice, budget=budget)
        found.__dict__["_others"] = self._others
        return found

    @cached_property
    def _uncompressed_peak(self) -> int:
        """Bytes of the activation peak of the model by itself."""
        if not self.compressed:
            return self.plain_peak
        return simulate(training_step(self.graph), [True] * len(self.graph.values)).peak - self.graph.gradients

    def _out_of_reach(self, budget: Budget) -> str:
        """Why there is no plan within a budget, and what to do."""
        least, plain = self.front[0].peak, self._uncompressed_peak
        share = ""
        if 0 < least <= plain:  # a fraction that is rounded up, so that it can be met
            share = f", {min(1000, 1000 * least // plain + 1) / 1000} of the plain step's {format_bytes(plain)}"
        found = f"at least {least} bytes ({format_bytes(least)}{share}), the least activation peak of all plans"
        if self.compressed:
            return (
                f"checkpoint must be a budget of {found} at this level, got {budget!r}; take a smaller batch, or call "
                "integrations.restore_model(model) and compress_model with such a budget, with checkpoint='optimal', "
                "or at a level of fewer bits"
            )
        proof = "no other is less" if self.exact else f"none is below {format_bytes(self.peak_bound)}"
        way_out = "compress what is kept, or take a smaller batch"
        other = self.accumulating
        if isinstance(budget, float) and other is not self and other.peak <= budget * other.plain_peak:
            way_out = (
                "the gradients, which are not in it, outweigh the activations in a first step, so that there is little "
                "to gain; in steps that add to gradients that are there already, activations go from "
                f"{format_bytes(other.plain_peak)} to {format_bytes(other.peak)}: for those, name bytes"
            )
        return f"budget must be {found} ({proof}), got {budget!r}; {way_out}"

    def to_json(self) -> str:
        """The plan as JSON."""
        return json.dumps(
            {
                "format": FORMAT,
                "model": self.model,
                "choice": self.choice.content(),
                "front": [choice.content() for choice in self.front],
                "peak_bound": self.peak_bound,
                "exact": self.exact,
                "budget": self.budget,
                "objective": self.objective,
                "compressed": self.compressed,
                "capture_seconds": self.capture_seconds,
                "search_seconds": self.search_seconds,
                "stored": None if self.stored is None else self.stored.content(),
                "graph": self.graph.content(),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The plan that ``to_json`` wrote.

        Raises:
            ValueError: it is no such text, or of another version, or its numbers contradict each other.
        """
        content = of_format(loaded(text, _WRITER), FORMAT, _WRITER)
        graph = Graph.from_content(content.pop("graph", None))
        with complete(_WRITER):
            choice = Choice.from_content(content.pop("choice"))
            front = tuple(map(Choice.from_content, list(content.pop("front"))))
            stored = content.pop("stored")
            stored = None if stored is None else StoredBytes.from_content(stored)
            plan = cls(graph=graph, choice=choice, front=front, stored=stored, **fields_of(cls, content))
            if plan.budget is not None:
                bytes_of(plan.budget, 1)
        if not front or max(one.mask | (one.held or 0) for one in (choice, *front)) >> len(graph.values):
            raise ValueError("text must be what Plan.to_json returned; its choices keep values that the graph lacks")
        if choice.held is not None and not any(one.held is None and one.peak >= choice.peak for one in front):
            raise ValueError("text must be what Plan.to_json returned; its front ends below the choice's peak")
        return plan

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the plan to a file, for another process or day."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """The plan that ``save`` wrote.

        Raises:
            OSError: the file cannot be read.
            ValueError: as ``from_json``; the message names the file.
        """
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} must be a file that Plan.save wrote: {error}") from None

    def plot(self, path: str | PathLike[str]) -> None:
        """Draws the front: activation peak against time, and which choice this is.

        Args:
            path: the file to write; its ending names the type: ``.png``, ``.svg``, ``.pdf``.

        Raises:
            ImportError: matplotlib is not there (``pip install actcore-integrations[plot]``).
            ValueError: the ending is of no type that matplotlib writes.
            OSError: the file cannot be written.
        """
        from integrations.checkpoint.planning.plot import plot_front

        plot_front(self, path)

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled with a model: all but a function of the user's, and what can be found again."""
        return {**self.__dict__, "loss": None, "_others": {}}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """The plan itself: nobody changes it, and copies of a model share it."""
        return self

    def __str__(self) -> str:
        from integrations.checkpoint.planning.table import table_of

        return table_of(self)

    def __repr__(self) -> str:
        return f"Plan({self.model}, peak={self.peak}, plain_peak={self.plain_peak}, segments={len(self.segments)})"
