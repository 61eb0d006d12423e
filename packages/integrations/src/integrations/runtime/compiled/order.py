"""Where the two graphs of a compiled region store and restore: torch puts all of it at the end of the one and at the
beginning of the other, so that everything would be alive at once.

A tensor is stored after its last use in the forward graph, and restored before its first use in the backward graph.
"""

from __future__ import annotations

from torch.fx import Graph, Node

_KNOWN = "integrations_known"  # in a node's meta, which torch copies when it gives a node another name


class Order:
    """Moves what torch has added to both graphs of a region since it was asked last: one tensor's hooks.

    The hooks of a region's last tensor stay where torch puts them, since it asks nobody afterwards.
    """

    def __init__(self, forward: Graph, backward: Graph) -> None:
        _added(forward)
        _added(backward)

    def settle(self, forward: Graph, backward: Graph) -> None:
        """Moves what is new to where it is needed."""
        if stored := _added(forward):
            _move_up(forward, stored)
        if restored := _added(backward):
            _move_down(backward, restored)


def _added(graph: Graph) -> list[Node]:
    """What was not there when it was asked last.

    Names would not tell: a tensor that is passed on as it is gets a new one, ``addmm`` becomes ``addmm_hook_1``.
    """
    new = [node for node in graph.nodes if _KNOWN not in node.meta]
    for node in new:
        node.meta[_KNOWN] = True
    return [node for node in new if node.op == "call_function"]


def _move_up(graph: Graph, nodes: list[Node]) -> None:
    """To the last of what the nodes take, and of those that take it."""
    taken, after = _surroundings(nodes)
    before = {user for source in taken for user in source.users if user.op != "output"} - set(nodes)
    places = {node: index for index, node in enumerate(graph.nodes)}
    place = [node for node in graph.nodes if node.op == "placeholder" or node in taken or node in before][-1]
    if any(places[user] <= places[place] for user in after):
        return  # some of what is new is needed before: where torch put it, the order is right
    for node in nodes:
        place.append(node)
        place = node


def _move_down(graph: Graph, nodes: list[Node]) -> None:
    """To the first of those that take what the nodes compute."""
    taken, after = _surroundings(nodes)
    places = {node: index for index, node in enumerate(graph.nodes)}
    place = min(after, key=places.__getitem__, default=None)
    if place is None or place.op == "output" or any(places[source] >= places[place] for source in taken):
        return
    for node in nodes:
        place.prepend(node)


def _surroundings(nodes: list[Node]) -> tuple[set[Node], set[Node]]:
    """What the nodes take, and what takes them."""
    own = set(nodes)
    return {source for node in nodes for source in node.all_input_nodes} - own, {
        user for node in nodes for user in node.users
    } - own
