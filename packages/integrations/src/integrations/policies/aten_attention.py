"""Attention of a compiled region whose query, key and value wait in fewer bits: backward recomputes it from these.

Torch's backward of attention reads the result and the logarithms of the softmax's sums. These sums do not belong to a
rounded query and key, and would not normalise their softmax (see ``attention``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from types import MappingProxyType

from torch.fx import Graph, Node

from integrations._utils.torch_internals import scaled_dot_product_flash_attention_for_cpu
from integrations.policies.aten_nodes import name_of

RECOMPUTED_ATTENTION = "attention is recomputed in backward"
QUERY_KEY_VALUE = (1, 2, 3)
"""The places of query, key and value among a backward operator's arguments."""

_NAME = "_scaled_dot_product_flash_attention_for_cpu"
# The backward operators, and the operator that computes the result and the sums that each of them reads.
_KERNELS = MappingProxyType({f"{_NAME}_backward": scaled_dot_product_flash_attention_for_cpu})
_THREE, _MADE = slice(1, 4), slice(4, 6)  # the places of query, key and value, and those of the result and the sums


def recompute_attention(backward: Graph, rounds: Callable[[Node], bool]) -> frozenset[str]:
    """Has each attention of a backward graph recompute its result and sums there.

    Args:
        backward: the graph.
        rounds: whether an input of the graph is stored in fewer bits. Attention whose backward reads nothing that
            depends on such an input is not changed.

    Returns:
        Names of the inputs that no node reads any more.
    """
    dropped: set[str] = set()
    for node in list(backward.nodes):
        forward = _KERNELS.get(name_of(node.target)) if node.op == "call_function" else None
        if forward is None or is_recomputed(node):
            continue
        if not any(map(rounds, find_inputs((*node.args[_THREE], *node.args[_MADE])))):
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


def find_inputs(nodes: Iterable[Node]) -> Iterator[Node]:
    """The inputs of a backward graph on which nodes depend."""
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
    """Whether a node is an attention's backward whose result and sums are computed from the same query, key and
    value."""
    forward = _KERNELS.get(name_of(node.target))
    if forward is None:
        return False
    found = [one.args[0] for one in node.args[_MADE] if isinstance(one, Node) and one.target is operator.getitem]
    return len(found) == 2 and all(
        isinstance(one, Node) and one.target is forward and one.args[:3] == node.args[_THREE] for one in found
    )


def find_made(node: Node) -> tuple[Node, ...]:
    """The forward's results that an attention's backward reads, which ``recompute_attention`` can recompute; empty for
    any other node."""
    if node.op != "call_function" or name_of(node.target) not in _KERNELS:
        return ()
    return tuple(one for one in node.args[_MADE] if isinstance(one, Node))


def is_attention(name: str) -> bool:
    """Whether ``recompute_attention`` recomputes an operator."""
    return name == _NAME
