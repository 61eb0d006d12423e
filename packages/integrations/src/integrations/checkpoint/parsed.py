"""``ParsedForward``: runs the graph that a model's own ``parse_graph`` returns.

The form is that of Optimal Gradient Checkpointing: nodes are tensors, edges have modules. A node that several edges
lead to has a ``transition``, which gets what these made, in the order of ``transition_input_order``: pairs of a node
and the edge's key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class _Call:
    """How a node is made.

    Attributes:
        node: its name.
        inputs: the nodes that it is made from, with the modules on the way.
        transition: joins several inputs; ``None`` for one.
    """

    node: Any
    inputs: tuple[tuple[Any, Callable[[Any], Any]], ...]
    transition: Callable[[list[Any]], Any] | None


class ParsedForward:
    """A forward made of a graph's modules.

    Args:
        graph: a ``networkx.MultiDiGraph``.
        source: the node that the input is.
        target: the node that is returned.

    Raises:
        ValueError: the graph has a cycle, its target cannot be reached, an edge has no module, or a node with several
            inputs no transition. The message names it.
    """

    def __init__(self, graph: Any, source: Any, target: Any) -> None:
        import networkx

        for name, node in (("source", source), ("target", target)):
            if node not in graph:
                raise ValueError(f"{name} must be a node of the graph, got {node!r}")
        if not networkx.is_directed_acyclic_graph(graph):
            raise ValueError("the graph of parse_graph must have no cycle")
        needed = {target, *networkx.ancestors(graph, target)}
        if source not in needed:
            raise ValueError(f"the target {target!r} must be reachable from the source {source!r}")
        self._source, self._target = source, target
        self._calls = [
            _get_call(graph, node) for node in networkx.topological_sort(graph) if node in needed and node != source
        ]
        self._ends: dict[int, list[Any]] = {}  # by the call's place: the nodes that are read there for the last time
        last = {node: place for place, call in enumerate(self._calls) for node, _ in call.inputs}
        for node, place in last.items():
            self._ends.setdefault(place, []).append(node)

    def __call__(self, given: Any) -> Any:
        made = {self._source: given}
        for place, call in enumerate(self._calls):
            inputs = [module(made[node]) for node, module in call.inputs]
            made[call.node] = inputs[0] if call.transition is None else call.transition(inputs)
            for node in self._ends.get(place, ()):
                del made[node]
        return made[self._target]


def _get_call(graph: Any, node: Any) -> _Call:
    edges = {(before, key): data for before, _, key, data in graph.in_edges(node, keys=True, data=True)}
    attributes = graph.nodes[node]
    transition = attributes.get("transition")
    order = [tuple(pair) for pair in attributes.get("transition_input_order", ())] if transition else list(edges)
    if not edges:
        raise ValueError(f"every node but the source must have an input, and {node!r} has none")
    if transition is None and len(edges) > 1:
        raise ValueError(f"a node with several inputs must have a transition, and {node!r} with {len(edges)} has none")
    if transition is not None and sorted(map(repr, order)) != sorted(map(repr, edges)):
        raise ValueError(
            f"transition_input_order of {node!r} must name each of its inputs once, {sorted(map(repr, edges))}, got "
            f"{order}"
        )
    for place, data in edges.items():
        if not callable(data.get("module")):
            raise ValueError(f"the edge from {place[0]!r} to {node!r} must have a module, got {data.get('module')!r}")
    return _Call(node, tuple((before, edges[before, key]["module"]) for before, key in order), transition)
