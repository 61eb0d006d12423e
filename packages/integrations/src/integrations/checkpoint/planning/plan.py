"""``Plan``: what of a model's forward is kept and what is made again, with what that takes; to be printed and saved."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self

from integrations.checkpoint.graphs.entries import fields_of, of_type
from integrations.checkpoint.graphs.graph import Graph
from integrations.checkpoint.graphs.schedule import Schedule
from integrations.checkpoint.planning.budget import Budget, bytes_of
from integrations.report import format_bytes

FORMAT = 1

Objective = Literal["peak", "paper"]


@dataclass(frozen=True)
class Choice:
    """The values to keep, and what follows.

    Attributes:
        mask: bit ``i`` is set where value ``i`` of the graph is kept.
        peak: bytes of the activation peak: of the step's, less those of the parameters' gradients.
        seconds: of the operators that backward repeats, by the model of their times.
        seconds_bound: no choice with such a peak takes fewer.
        held: where checkpoints are nested, bit ``i`` is set where a segment that makes value ``i`` again holds it, as
            in ``Schedule.of``; else ``None``.
    """

    mask: int
    peak: int
    seconds: float
    seconds_bound: float
    held: int | None = None

    @property
    def kept(self) -> tuple[int, ...]:
        """Numbers of the values that are kept."""
        return numbers_of(self.mask)

    def schedule(self, graph: Graph) -> Schedule:
        """What it means for each operator."""
        return Schedule.of(graph, self.kept, None if self.held is None else numbers_of(self.held))


def numbers_of(mask: int) -> tuple[int, ...]:
    """The numbers of the bits that are set."""
    return tuple(value for value in range(mask.bit_length()) if mask >> value & 1)


def mask_of(values: Iterable[int]) -> int:
    """These numbers as the bits of one."""
    mask = 0
    for value in values:
        mask |= 1 << value
    return mask


@dataclass(frozen=True)
class PlannedSegment:
    """Operators that are repeated together, when backward first needs one of their results.

    Attributes:
        first, last: paths of the modules in whose forward the first and the last of them run.
        operators: how many.
        nbytes: of what they make for backward, and autograd would have kept.
        seconds: that they take, by the model of their times.
        inner: whether checkpoints are nested here: they make what a larger segment, which is repeated before if it
            makes what these read, does not hold.
    """

    first: str
    last: str
    operators: int
    nbytes: int
    seconds: float
    inner: bool = False


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
        capture_seconds, search_seconds: that planning took.
    """

    model: str
    graph: Graph
    choice: Choice
    front: tuple[Choice, ...]
    peak_bound: int
    exact: bool
    budget: Budget | None = None
    objective: Objective = "peak"
    capture_seconds: float = field(default=0.0, compare=False)
    search_seconds: float = field(default=0.0, compare=False)

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
        return replace(self, choice=flat[0])

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
        schedule, values = self.schedule, self.graph.values
        members: dict[tuple[int, bool], list[int]] = {}
        for number, op in enumerate(schedule.ops):
            for segment, inner in ((op.segment, False), (op.inner, True)):
                if segment >= 0:
                    members.setdefault((segment, inner), []).append(number)
        ops = self.graph.ops
        return tuple(
            PlannedSegment(
                ops[numbers[0]].module,
                ops[numbers[-1]].module,
                len(numbers),
                sum(
                    values[value].nbytes
                    for number in numbers
                    for value in ops[number].makes
                    if value in schedule.recomputed and values[value].saved >= 0 and (value in schedule.inner) == inner
                ),
                sum(ops[number].seconds for number in numbers),
                inner,
            )
            for (_, inner), numbers in sorted(members.items())
        )

    def within(self, budget: Budget) -> Plan:
        """The plan of the front that takes the least time within a budget.

        Args:
            budget: as in ``integrations.checkpoint.plan``.

        Raises:
            TypeError, ValueError: as there.
        """
        allowed = bytes_of(budget, self.plain_peak)
        fitting = [choice for choice in self.front if choice.peak <= allowed]
        if not fitting:
            least = self.front[0].peak
            proof = "no other is less" if self.exact else f"none is below {format_bytes(self.peak_bound)}"
            raise ValueError(
                f"budget must be at least {least} bytes ({format_bytes(least)}, {least / self.plain_peak:.3f} of the "
                f"plain step's {format_bytes(self.plain_peak)}), the least activation peak of all plans ({proof}), got "
                f"{budget!r}; compress what is kept, or take a smaller batch"
            )
        return replace(self, choice=fitting[-1], budget=budget)

    def to_json(self) -> str:
        """The plan as JSON."""
        return json.dumps(
            {
                "format": FORMAT,
                "model": self.model,
                "choice": _plain(self.choice),
                "front": [_plain(choice) for choice in self.front],
                "peak_bound": self.peak_bound,
                "exact": self.exact,
                "budget": self.budget,
                "objective": self.objective,
                "capture_seconds": self.capture_seconds,
                "search_seconds": self.search_seconds,
                "graph": json.loads(self.graph.to_json()),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The plan that ``to_json`` wrote.

        Raises:
            ValueError: it is no such text, or of another version, or its numbers contradict each other.
        """
        try:
            content = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"text must be what Plan.to_json returned; it is no JSON: {error}") from None
        found = content.pop("format", None) if isinstance(content, dict) else None
        if found != FORMAT:
            raise ValueError(f"text must be what Plan.to_json returned, of format {FORMAT}; got format {found!r}")
        graph = Graph.from_json(json.dumps(content.pop("graph", None)))
        try:
            choice, front = _choice(content.pop("choice")), tuple(map(_choice, list(content.pop("front"))))
            plan = cls(graph=graph, choice=choice, front=front, **fields_of(cls, content))
            if plan.budget is not None:
                bytes_of(plan.budget, 1)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"text must be what Plan.to_json returned; it lacks or adds something: {error}") from None
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
            ValueError: as ``from_json``.
        """
        return cls.from_json(Path(path).read_text(encoding="utf-8"))

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

    def __str__(self) -> str:
        from integrations.checkpoint.planning.table import table_of

        return table_of(self)

    def __repr__(self) -> str:
        return f"Plan({self.model}, peak={self.peak}, plain_peak={self.plain_peak}, segments={len(self.segments)})"


def _plain(choice: Choice) -> dict[str, Any]:
    return {
        "kept": f"{choice.mask:x}",
        "held": None if choice.held is None else f"{choice.held:x}",
        "peak": choice.peak,
        "seconds": choice.seconds,
        "seconds_bound": choice.seconds_bound,
    }


def _choice(content: Any) -> Choice:
    given = dict(content)
    kept, held = of_type(str, given.pop("kept"), "kept"), of_type(str | None, given.pop("held"), "held")
    return Choice(mask=int(kept, 16), held=None if held is None else int(held, 16), **fields_of(Choice, given))
