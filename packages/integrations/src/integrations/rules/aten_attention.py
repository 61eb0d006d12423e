"""Attention of a compiled region whose query, key and value wait in fewer bits: backward recomputes it from these.

torch's backward of attention takes its result and the logarithms of the softmax's sums. With a query and key that were
rounded the sums would be of other numbers, by which the softmax is not normalised (see ``attention``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from types import MappingProxyType

from torch.fx import Graph, Node

from integrations._torch import scaled_dot_product_flash_attention_for_cpu
from integrations.rules.aten_nodes import name_of

RECOMPUTED_ATTENTION = "attention is recomputed in backward"
QUERY_KEY_VALUE = (1, 2, 3)
"""Their places among a backward operator's arguments."""

_NAME = "_scaled_dot_product_flash_attention_for_cpu"
# The backward operators, and what computes the result and the sums that they take.
_KERNELS = MappingProxyType({f"{_NAME}_backward": scaled_dot_product_flash_attention_for_cpu})
_THREE, _MADE = slice(1, 4), slice(4, 6)  # and those of the result and the sums


def recompute_attention(backward: Graph, rounds: Callable[[Node], bool]) -> frozenset[str]:
    """Has each attention of a backward graph take a result and sums that are computed there.

    Args:
        backward: the graph.
        rounds: whether one of its inputs waits in fewer bits. Attention whose query, key and value are computed from
            none that does is left as it is.

    Returns:
        Names of the inputs that nothing takes any more.
    """
    dropped: set[str] = set()
    for node in list(backward.nodes):
        forward = _KERNELS.get(name_of(node.target)) if node.op == "call_function" else None
        if forward is None or is_recomputed(node) or not any(map(rounds, _inputs_of(node.args[_THREE]))):
            continue
        made: tuple[Node, ...] = node.args[_MADE]
        with backward.inserting_before(node):
            again = backward.call_function(forward, (*node.args[_THREE], *node.args[6:]), dict(node.kwargs))
            parts = [backward.call_function(operator.getitem, (again, place)) for place in range(len(made))]
        again.meta["val"] = tuple(one.meta["val"] for one in made)
        for part, one in zip(parts, made, strict=True):
            part.meta["val"] = one.meta["val"]
        node.args = (*node.args[: _MADE.start], *parts, *node.args[_MADE.stop :])
        dropped.update(one.name for one in made if one.op == "placeholder" and not one.users)
    return frozenset(dropped)


def _inputs_of(nodes: Iterable[Node]) -> Iterator[Node]:
    """The inputs of the graph that nodes are computed from."""
    todo = list(nodes)
    seen = set(todo)
    while todo:
        node = todo.pop()
        if node.op == "placeholder":
            yield node
        new = set(node.all_input_nodes) - seen
        seen |= new
        todo.extend(new)


def is_recomputed(node: Node) -> bool:
    """Whether a node is an attention's backward whose result and sums are those of the same query, key and value."""
    forward = _KERNELS.get(name_of(node.target))
    if forward is None:
        return False
    found = [one.args[0] for one in node.args[_MADE] if isinstance(one, Node) and one.target is operator.getitem]
    return len(found) == 2 and all(
        isinstance(one, Node) and one.target is forward and one.args[:3] == node.args[_THREE] for one in found
    )


def is_attention(name: str) -> bool:
    """Whether an operator is one that ``recompute_attention`` recomputes."""
    return name == _NAME
