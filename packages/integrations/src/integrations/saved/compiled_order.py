"""Where the two graphs of a compiled region store and restore: torch puts all of it at the end of the one and at the
beginning of the other, so that everything would be alive at once.

A tensor is stored after its last use in the forward graph, and restored before its first use in the backward graph.
"""

from __future__ import annotations

from torch.fx import Graph, Node


class Order:
    """Moves what torch has added to both graphs of a region since it was asked last: one tensor's hooks.

    The hooks of a region's last tensor stay where torch puts them, since it asks nobody afterwards.
    """

    def __init__(self, forward: Graph, backward: Graph) -> None:
        self._known = (_names(forward), _names(backward))  # a node would keep its graph alive

    def settle(self, forward: Graph, backward: Graph) -> None:
        """Moves what is new to where it is needed."""
        stored, restored = (_added(graph, known) for graph, known in zip((forward, backward), self._known, strict=True))
        if stored:
            _move_up(forward, stored)
        if restored:
            _move_down(backward, restored)


def _names(graph: Graph) -> set[str]:
    return {node.name for node in graph.nodes}


def _added(graph: Graph, known: set[str]) -> list[Node]:
    new = [node for node in graph.nodes if node.name not in known]
    known.update(node.name for node in new)
    return [node for node in new if node.op == "call_function"]


def _move_up(graph: Graph, nodes: list[Node]) -> None:
    """To the last of what the nodes take, and of those that take it."""
    own = set(nodes)
    taken = {source for node in nodes for source in node.all_input_nodes} - own
    before = {user for source in taken for user in source.users if user.op != "output"} - own
    place = [node for node in graph.nodes if node.op == "placeholder" or node in taken or node in before][-1]
    for node in nodes:
        place.append(node)
        place = node


def _move_down(graph: Graph, nodes: list[Node]) -> None:
    """To the first of those that take what the nodes compute."""
    own = set(nodes)
    after = {user for node in nodes for user in node.users} - own
    place = next((node for node in graph.nodes if node in after), None)
    if place is not None and place.op != "output":
        for node in nodes:
            place.prepend(node)
