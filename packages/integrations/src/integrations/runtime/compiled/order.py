"""Where the two graphs of a compiled region store and restore. Torch puts all storing at the end of the forward graph
and all restoring at the beginning of the backward graph, so that everything would be alive at once.

Here a tensor is stored after its last use in the forward graph, and restored before its first use in the backward
graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

_NOT_NOTED = -1
STREAM = torch.ops.actcore.region_stream.default

_KNOWN = "integrations_known"  # a key of a node's meta, which torch copies when it renames a node


class Order:
    """Moves the nodes that torch has added to both graphs of a region since the last call: one tensor's hooks.

    The hooks of a region's last tensor stay where torch puts them, since nothing is called after them.
    """

    def __init__(self, forward: Graph, backward: Graph) -> None:
        _added(forward)
        _added(backward)

    def settle(self, forward: Graph, backward: Graph) -> None:
        """Moves new nodes to where they are needed."""
        if stored := _added(forward):
            _move_up(forward, stored)
        if restored := _added(backward):
            _move_down(backward, restored)


def _added(graph: Graph) -> list[Node]:
    """The nodes that were not in the graph at the last call.

    Names do not tell them: torch renames the node of a tensor that is passed on as it is, from ``addmm`` to
    ``addmm_hook_1``.
    """
    new = [node for node in graph.nodes if _KNOWN not in node.meta]
    for node in new:
        node.meta[_KNOWN] = True
    return [node for node in new if node.op == "call_function"]


def _move_up(graph: Graph, nodes: list[Node]) -> None:
    """Moves the nodes up, behind the last node that computes or reads their inputs."""
    taken, after = _surroundings(nodes)
    before = {user for source in taken for user in source.users if user.op != "output"} - set(nodes)
    places = {node: index for index, node in enumerate(graph.nodes)}
    place = [node for node in graph.nodes if node.op == "placeholder" or node in taken or node in before][-1]
    if any(places[user] <= places[place] for user in after):
        return  # some new nodes are read before that, so torch's order is right
    for node in nodes:
        place.append(node)
        place = node


def _move_down(graph: Graph, nodes: list[Node]) -> None:
    """Moves the nodes down, before the first node that reads what they compute."""
    taken, after = _surroundings(nodes)
    places = {node: index for index, node in enumerate(graph.nodes)}
    place = min(after, key=places.__getitem__, default=None)
    if place is None or place.op == "output" or any(places[source] >= places[place] for source in taken):
        return
    for node in nodes:
        place.prepend(node)


def _surroundings(nodes: list[Node]) -> tuple[set[Node], set[Node]]:
    """The nodes that these nodes read, and the nodes that read them."""
    own = set(nodes)
    return {source for node in nodes for source in node.all_input_nodes} - own, {
        user for node in nodes for user in node.users
    } - own


def find_symbols(graph: Graph) -> tuple[Any, ...]:
    """The symbols of sizes that a graph is given, in the order of its inputs."""
    return tuple(node.meta["val"].node.expr for node in _find_sizes(graph))


def draw_one_stream(graph: Graph, symbols: tuple[Any, ...]) -> None:
    """Has a region's forward graph draw its stream once, before all else, and note the values of these symbols.

    Each tensor's hooks have brought an operator for it, since they are traced by themselves.
    """
    inputs = graph.find_nodes(op="placeholder")
    sizes = {node.meta["val"].node.expr: node for node in _find_sizes(graph)}
    drawn: dict[torch.device, Node] = {}
    for node in graph.find_nodes(op="call_function", target=STREAM):
        device = node.args[0].meta["val"].device
        given = next((one for one in inputs if _is_on(one, device)), None)
        if given is None:
            continue
        if device in drawn:
            node.replace_all_uses_with(drawn[device])
            graph.erase_node(node)
            continue
        # A region with tensors on several devices is noted once.
        node.args = (given, _NOT_NOTED if drawn else node.args[1], [sizes[symbol] for symbol in symbols])
        node.meta[_KNOWN] = True
        node.meta.pop("eager_input_vals", None)  # of the argument that it had
        (drawn[next(reversed(drawn))] if drawn else inputs[-1]).append(node)
        drawn[device] = node


def _find_sizes(graph: Graph) -> list[Node]:
    values = ((node, node.meta.get("val")) for node in graph.find_nodes(op="placeholder"))
    return [node for node, value in values if isinstance(value, torch.SymInt) and value.node.expr.is_Symbol]


def _is_on(node: Node, device: torch.device) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.layout is torch.strided and value.device == device
