"""A plan as JSON, in which all numbers stay exact."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

from integrations._utils.checked_json import complete, loaded, of_format, of_type, read_entry, read_fields
from integrations.capture.graphs.graph import Graph
from integrations.planner.accumulation import accumulating_plan, note_accumulating
from integrations.planner.bounds import ONLY_RECOMPUTE, Bounds
from integrations.planner.budget import LEAST
from integrations.planner.choice import Choice
from integrations.planner.chunked import ChunkedLoss
from integrations.planner.problem import training_step
from integrations.planner.solution import Found, Solution
from integrations.planner.storage_candidates import StorageCandidates
from integrations.policies.levels import Level

FORMAT = 4
"""Format 3 had other names for the stores of values. Format 2 did not have stores, and its levels stored sizes of a
search that is gone."""
_WRITER = "Plan.to_json"
_PLAIN = (
    *("model", "peak_bound", "exact", "memory", "objective", "time", "error", "stores", "measured", "unmeasured"),
    *("capture_seconds", "search_seconds"),
)
"""Fields whose values are JSON already."""


class OfOldLevel(ValueError):
    """A plan for a level, in a format that did not say how values are stored: it has to be made anew.

    Attributes:
        budget: of the activation peak, as it was asked for.
    """

    def __init__(self, budget: Any) -> None:
        super().__init__(
            f"text must be what {_WRITER} returned, of format {FORMAT}; got a plan for a level of format 2, which did "
            "not say how values are stored: plan again"
        )
        self.budget = budget


def to_json(plan: Solution) -> str:
    """The plan as JSON."""
    return json.dumps(_content(plan))


def _content(plan: Solution) -> dict[str, Any]:
    other = accumulating_plan(plan)
    return {
        "format": FORMAT,
        **_found_content(plan),
        "level": None if plan.level is None else asdict(plan.level),
        "loss": plan.bounds.loss,
        **({"fallback": LEAST} if plan.bounds.falls_back else {}),
        "chunked": None if plan.chunked is None else asdict(plan.chunked),
        "graph": plan.graph.content(),
        "candidates": None if plan.candidates is None else plan.candidates.content(),
        "rounded": None if plan.rounded is None else plan.rounded.content(),
        "rounded_candidates": None if plan.rounded_candidates is None else plan.rounded_candidates.content(),
        "also": [_content(other) for other in plan.also],
        "accumulating": None if other is None else _found_content(other),
        **({"earlier": list(plan.earlier)} if plan.earlier else {}),
    }


def _found_content(plan: Solution) -> dict[str, Any]:
    """What a search found, and what it was asked for."""
    return {
        **{name: getattr(plan, name) for name in _PLAIN},
        "choice": plan.choice.content(),
        "front": [choice.content() for choice in plan.front],
    }


def of_json(kind: type[Found], text: str) -> Found:
    """The plan that ``to_json`` wrote.

    Raises:
        ValueError: the text is not a plan, or of another version, or its numbers contradict each other.
    """
    return _of_content(kind, loaded(text, _WRITER))


def _of_content(kind: type[Found], given: Any, beside: bool = False) -> Found:
    """The plan of a JSON object; ``beside`` another one, it has none beside it."""
    content = _of_this_format(given)
    also, other = content.pop("also", None) or [], content.pop("accumulating", None)
    graph = Graph.from_content(content.pop("graph", None))
    rounded = content.pop("rounded", None)
    rounded = None if rounded is None else Graph.from_content(rounded)
    asked, chunked = content.pop("loss", None), content.pop("chunked", None)  # earlier files lack them
    fallback, earlier = content.pop("fallback", "error"), content.pop("earlier", ())
    with complete(_WRITER):
        if beside and also:
            raise ValueError("a plan of also must have none of its own")
        level = content.pop("level")
        plan = kind(
            graph=graph,
            rounded=rounded,
            candidates=_candidates(content.pop("candidates"), graph),
            rounded_candidates=_candidates(content.pop("rounded_candidates"), rounded),
            level=None if level is None else read_entry(Level, level),
            chunked=None if chunked is None else read_entry(ChunkedLoss, chunked),
            earlier=of_type(tuple[int, ...], earlier, "earlier"),
            also=tuple(_of_content(kind, one, beside=True) for one in of_type(list, also, "also")),
            **_found(kind, content, level is not None, _most_values(graph, rounded)),
        )
        in_flight = graph.in_flight if graph.in_flight > 1 else None
        plan = replace(plan, bounds=replace(plan.bounds, loss=asked, fallback=fallback, in_flight=in_flight))
        _require_whole(plan)
        if other is not None:
            note_accumulating(plan, _accumulating(plan, dict(other)))
    return plan


def _found(kind: type[Solution], content: dict[str, Any], at_level: bool, values: int) -> dict[str, Any]:
    """Removes the fields of a plan that ``_found_content`` wrote from the content, and returns them."""
    return {
        "bounds": _bounds(content, at_level),
        "choice": Choice.from_content(content.pop("choice"), values),
        "front": tuple(Choice.from_content(one, values) for one in of_type(list, content.pop("front"), "front")),
        **read_fields(kind, content),
    }


def _accumulating(plan: Found, content: dict[str, Any]) -> Found:
    """The plan for gradients that exist already, with the same values."""
    rounded = None if plan.rounded is None else plan.rounded.accumulating
    found = _found(type(plan), content, plan.compressed, _most_values(plan.graph, rounded))
    found["bounds"] = replace(found["bounds"], loss=plan.bounds.loss, fallback=plan.bounds.fallback)
    other = replace(plan, graph=plan.graph.accumulating, rounded=rounded, also=(), **found)
    _require_whole(other)
    return other


def _most_values(graph: Graph, rounded: Graph | None) -> int:
    return max(len(graph.values), 0 if rounded is None else len(rounded.values))


def _bounds(content: dict[str, Any], at_level: bool) -> Bounds:
    """Removes the bounds from the fields of a plan, and returns them."""
    memory, time, error, stores = (content.pop(name) for name in ("memory", "time", "error", "stores"))
    return Bounds(memory, time, None if at_level else of_type(float, error, "error"), stores)


def _require_whole(plan: Solution) -> None:
    """Checks that the parts of a plan go together, before a model follows it.

    Raises:
        KeyError, TypeError, ValueError: they do not; the message says which.
    """
    choice, front = plan.choice, plan.front
    if len(plan.earlier) not in (0, 3) or min(plan.earlier, default=0) < 0:
        raise ValueError("earlier must have a number of bytes for each of the three states of the gradients")
    if not front:
        raise ValueError("front must have a choice")
    if choice.held is not None and not any(one.held is None and one.peak >= choice.peak for one in front):
        raise ValueError("its front ends below the choice's peak")
    if plan.rounded is not None and plan.rounded.fingerprint != plan.graph.fingerprint:
        raise ValueError("rounded must be of the model that graph is of")
    for graph, candidates in ((plan.graph, plan.candidates), (plan.rounded, plan.rounded_candidates)):
        if graph is not None:
            training_step(graph, candidates)  # this checks all numbers
    for one in (choice, *front):
        if one.rounded != plan.graph_of(one).rounded:
            raise ValueError("rounded must be a graph where a choice is of that")
        if one.most >= len(plan.graph_of(one).values):  # they were among those of the larger graph
            raise ValueError("its choices name values that the graph lacks")
        candidates = plan.candidates_for(one)
        for value, store in one.stores:
            candidates.option(value, store)


def _candidates(content: Any, graph: Graph | None) -> StorageCandidates | None:
    if content is None or graph is None:
        return None
    return StorageCandidates.from_content(content, len(graph.values))


def _of_this_format(content: Any) -> dict[str, Any]:
    """The JSON object in today's format.

    Raises:
        ValueError: it is no object, or of a format that cannot be read.
    """
    if not isinstance(content, dict) or content.get("format") != 2:
        return of_format(content, FORMAT, _WRITER)
    if content.get("compressed"):
        raise OfOldLevel(content.get("budget"))
    renewed = {name: entry for name, entry in content.items() if name not in ("format", "compressed", "stored")}
    renewed["memory"] = renewed.pop("budget", None)
    for choice in (renewed.get("choice"), *list(renewed.get("front") or ())):
        if isinstance(choice, dict):
            choice.update(stores={}, variance=0.0, rounded=False)
    return {
        **renewed,
        "time": None,
        "error": 0.0,
        "level": None,
        "stores": list(ONLY_RECOMPUTE),
        **dict.fromkeys(("candidates", "rounded", "rounded_candidates")),
    }
