"""``Line``: what a plan does with the values of one module, how, why, and what that costs; for people who read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from integrations.planner.solution import Solution
from integrations.planner.storage_candidates import Option
from integrations.policies.stores import Store
from integrations.report.words import format_seconds

KEPT, RECOMPUTED, INNER = "kept", "recomputed", "recomputed (inner)"
"""How values wait that have no store: as they are, or recomputed; the last one is for nested segments."""

_HIDDEN = "*"


@dataclass(frozen=True)
class Line:
    """Values of a module, or of modules that differ only in their numbers, that wait for backward in one way.

    Attributes:
        module: path of the module whose forward makes them; ``*`` stands for numbers.
        numbers: those numbers; empty for a single module.
        operators: the ATen operators that make them, each once.
        how: how the values wait: ``KEPT``, the name of a ``Store``, or ``RECOMPUTED``; ``RECOMPUTED, then`` a store if
            they wait in that store once they have been recomputed.
        why: why they do; see ``reason``.
        values: how many there are.
        nbytes: their bytes without a plan.
        held: bytes that wait from the forward to backward.
        seconds: modelled seconds to store and restore them, or to recompute them.
        spared: seconds that recomputing them would take, for kept values that could be recomputed.
        variance: their part of the predicted square of the gradient's relative error.
    """

    module: str
    numbers: tuple[int, ...]
    operators: tuple[str, ...]
    how: str
    why: str
    values: int
    nbytes: int
    held: int
    seconds: float
    spared: float
    variance: float

    @property
    def reason(self) -> str:
        """Why the values wait in this way."""
        return self.why or f"recomputing would take {format_seconds(self.spared)}"


def make_lines(plan: Solution) -> list[Line]:
    """What a plan does with each module's values: those that autograd saves, and those that are recomputed for them; in
    the order of the forward."""
    merged: dict[tuple[str, str, str], Line] = {}
    for line in _get_values(plan):
        key = line.module, line.how, line.why
        found = merged.get(key)
        merged[key] = line if found is None else _sum(found, line)
    return list(merged.values())


def grouped(lines: Sequence[Line]) -> list[tuple[Line, list[Line]]]:
    """The lines, with those of repeated modules joined, whose paths differ in one number. Each comes with the lines
    that it is made of."""
    members: dict[tuple[str, str, str], list[Line]] = {}
    for line in lines:
        key = _hidden(line.module)[0], line.how, _pattern(line.why)
        members.setdefault(key, []).append(line)
    return [(_joined(pattern, found), found) for (pattern, _, _), found in members.items()]


def _joined(pattern: str, lines: list[Line]) -> Line:
    whole = reduce(_sum, lines)
    if len({line.module for line in lines}) == 1:
        return whole
    numbers = [_hidden(line.module)[1] for line in lines]
    return replace(whole, module=pattern, numbers=tuple(sorted(set(numbers))))


def _hidden(path: str) -> tuple[str, int]:
    """A module's path with ``*`` in the place of its block's number, and that number; -1 if there is none. The block's
    number is the last one that is not at the end of the path; otherwise the one at the end, which is a place in an
    ``nn.Sequential``."""
    parts = path.split(".")
    places = [place for place, part in enumerate(parts) if part.isdecimal()]
    if not places:
        return path, -1
    place = next((one for one in reversed(places) if one + 1 < len(parts)), places[-1])
    return ".".join((*parts[:place], _HIDDEN, *parts[place + 1 :])), int(parts[place])


def _pattern(why: str) -> str:
    """A reason, with ``*`` in the place of the number of a block that it may name."""
    return " ".join(_hidden(word)[0] for word in why.split(" "))


def span(line: Line) -> str:
    """The numbers of the modules that a line stands for: ``"0-3, 5"``; empty for one module."""
    found: list[list[int]] = []
    for number in line.numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def _sum(one: Line, other: Line) -> Line:
    return Line(
        one.module,
        (),
        tuple(dict.fromkeys((*one.operators, *other.operators))),
        one.how,
        one.why if one.why == other.why else _pattern(one.why),
        one.values + other.values,
        one.nbytes + other.nbytes,
        one.held + other.held,
        one.seconds + other.seconds,
        one.spared + other.spared,
        one.variance + other.variance,
    )


def _get_values(plan: Solution) -> Iterator[Line]:
    """A line for each value."""
    graph, schedule, choice, candidates = plan.followed, plan.schedule, plan.choice, plan.candidates_for(plan.choice)
    reads = Counter(value for step in graph.steps for value in step.reads)
    repeated = {value for op in schedule.ops if op.segment >= 0 or op.inner >= 0 for value in _reads(plan, op.makes)}
    stores = dict(choice.stores)
    for op, planned in zip(graph.ops, schedule.ops, strict=True):
        repeating = op.repeat_seconds * ((planned.segment >= 0) + (planned.inner >= 0))
        made = [value for value in op.makes if value not in schedule.becomes]
        shown = [value for value in made if graph.values[value].saved >= 0]
        if (planned.segment >= 0 or planned.inner >= 0) and not shown:  # recomputed only for other values
            yield Line(
                op.module, (), (op.name,), RECOMPUTED, "needed to recompute other tensors", 0, 0, 0, repeating, 0.0, 0.0
            )
        for value in shown:
            store, nbytes = stores.get(value), graph.values[value].nbytes
            option = None if store is None else candidates.option(value, store)
            if plan.compressed and candidates.options[value]:
                option = candidates.options[value][0]
            seconds = 0.0 if option is None else option.store_seconds + reads[value] * option.restore_seconds
            variance = 0.0 if option is None else option.noise * candidates.weights[value]
            if value in schedule.recomputed:
                how = INNER if value in schedule.inner else RECOMPUTED
                why = _origin(plan, planned.inner if value in schedule.inner else planned.segment)
                how = how if option is None else f"{how}, then {named(store)}"
                aside, spent = candidates.aside[value], repeating + seconds
                yield Line(op.module, (), (op.name,), how, why, 1, nbytes, aside, spent, 0.0, variance)
                repeating = 0.0  # counted once for all values of the operator
            elif option is not None:
                why = _why_stored(option, store, value in repeated)
                yield Line(op.module, (), (op.name,), named(store), why, 1, nbytes, option.held, seconds, 0.0, variance)
            else:
                why = "recomputation starts from it" if value in repeated else ""
                why = why if op.repeatable else "cannot be recomputed"
                yield Line(op.module, (), (op.name,), KEPT, why, 1, nbytes, nbytes, 0.0, op.seconds / len(shown), 0.0)


def named(store: Store | None) -> str:
    """A store's name, without "exact" for a store that never rounds; for ``None``, the name of a level's store."""
    if store is None:
        return "as the level says"
    return str(store).removeprefix("exact, ") if store.slope_bits else str(store)


def _reads(plan: Solution, makes: Sequence[int]) -> tuple[int, ...]:
    return plan.followed.ops[plan.followed.values[makes[0]].producer].reads


def _origin(plan: Solution, segment: int) -> str:
    """Where a segment starts, named by its first operator."""
    return f"segment starts at {plan.followed.ops[segment].module or '(model)'}"


def _why_stored(option: Option, store: Store | None, starts: bool) -> str:
    if store is None:
        return "recomputation starts from it" if starts else "the level stores all kept tensors"
    if option.noise > 0:
        return "rounded; recomputation starts from it" if starts else "rounded within the error"
    if store.host:
        return "exact, in host memory"
    return "exact: backward needs only these bits"
