"""``optimal_grad_checkpointing``: the call of Optimal Gradient Checkpointing's README. ``ParsedForward``: runs the
graph that a model's own ``parse_graph`` returns.

The form of such a graph is that of Optimal Gradient Checkpointing: nodes are tensors, edges have modules. A node that
several edges lead to has a ``transition``, which gets what these made, in the order of ``transition_input_order``:
pairs of a node and the edge's key.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from integrations._utils.older_names import accepts_older_names
from integrations._utils.warn import warn
from integrations.capture.loss import Loss
from integrations.checkpoint.applied import apply
from integrations.planner.budget import Budget
from integrations.planner.plan_recomputation import plan

Model = TypeVar("Model", bound=nn.Module)


@accepts_older_names(memory="budget", criterion="loss")
def optimal_grad_checkpointing(
    net: Model,
    inp: Any,
    *,
    memory: Budget | None = None,
    criterion: Loss | None = None,
    holds_outputs: bool | None = None,
) -> Model:
    """A module that trains as ``net`` does, with the least memory that repeating parts of the forward can buy.

    ::

        net = torchvision.models.resnet18()
        run_segment = optimal_grad_checkpointing(net, inp)
        loss = criterion(run_segment(images), labels)

    What comes back is a shallow copy of ``net``: of its class, with the very same parameters, buffers and modules, so
    that ``state_dict``, optimizers and ``eval()`` work with either; ``net`` itself stays plain. For a model in place,
    and for plans that can be printed and saved, see ``plan`` and ``apply``.

    The forward is captured by itself. Where that fails and ``net`` has a ``parse_graph``, as the README describes it,
    the graph that it returns is run in the forward's place: a ``networkx.MultiDiGraph``, its source and its target; an
    edge has a ``module``, and a node with several inputs a ``transition`` and its ``transition_input_order``.

    Args:
        net: any module; it is put into training mode, as by ``net.train()``.
        inp: its input, as in training: a tensor, a tuple of several, or a mapping by name. It need not require a
            gradient.
        memory, criterion, holds_outputs: as in ``plan``.

    Raises:
        TypeError, ValueError: as ``plan`` does.
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"net must be a torch.nn.Module, got {type(net).__name__}")
    net.train()
    twin = copy.copy(net)
    try:
        found = plan(twin, inp, memory=memory, criterion=criterion, holds_outputs=holds_outputs)
    except Exception as error:
        parse_graph: Any = getattr(net, "parse_graph", None)
        if parse_graph is None:
            raise
        given = inp if not isinstance(inp, (tuple, list)) or len(inp) > 1 else inp[0]
        twin.__dict__["forward"] = ParsedForward(*parse_graph(given))
        warn(
            f"{type(net).__name__}'s forward cannot be captured ({type(error).__name__}: {error}); the graph that "
            "parse_graph returns runs instead"
        )
        found = plan(twin, inp, memory=memory, criterion=criterion, holds_outputs=holds_outputs)
    return apply(twin, found)


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
