"""What a node of a graph of aten operators is: its operator's name, its shape, its numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.fx import Node


def get_operator(node: Node) -> str:
    """The name of the operator that computes a node."""
    return name_of(node.target)


def name_of(target: Any) -> str:
    """The operator's name without its overload; with its library's name if that is not torch's."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return str(getattr(target, "__name__", target))
    library, _, name = schema.name.partition("::")
    return str(name) if library in ("aten", "prims") else str(schema.name)


def find_origin(node: Node) -> str:
    """The operator that a backend decomposed into nodes of which this is one."""
    original = node.meta.get("original_aten")
    return name_of(original) if original is not None else name_of(node.target)


def find_connected(nodes: Iterable[Node], neighbors: Callable[[Node], Iterable[Node]]) -> set[Node]:
    """Return the nodes with all to which neighbors lead from them, such as those that depend on them."""
    found = set(nodes)
    waiting = list(found)
    while waiting:
        new = set(neighbors(waiting.pop())) - found
        found |= new
        waiting += new
    return found


def hint(size: Any) -> int:
    """A size. A varying one is as it was when the region was compiled; ``int(size)`` would fix it."""
    found = size if isinstance(size, int) else getattr(getattr(size, "node", None), "hint", None)
    return found if isinstance(found, int) else 0


def number(value: Any) -> int | float | None:
    """The argument if it is a number; else ``None``."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def get_shape(node: Node) -> tuple[Any, ...]:
    """The sizes of the node's result; empty if that is no tensor."""
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


def covers(node: Node, user: Node) -> bool:
    """Whether each element of the node is used for one element of the result, unlike those of a statistic."""
    return get_shape(node) == get_shape(user)


def has_same_numbers(node: Node) -> bool:
    """Whether a view, copy or cast has the same numbers as its argument. A cast to integers or a view as another dtype
    does not."""
    if any(isinstance(argument, torch.dtype) for argument in node.args) and name_of(node.target) == "view":
        return False
    value = node.meta.get("val")
    parts = value if isinstance(value, (tuple, list)) else (value,)
    return all(isinstance(part, torch.Tensor) and (part.is_floating_point() or part.is_complex()) for part in parts)


def is_bool(node: Node) -> bool:
    """Whether a node is a mask, or the number that a mask was cast to."""
    value = node.meta.get("val")
    if name_of(node.target) in ("convert_element_type", "_to_copy") and isinstance(node.args[0], Node):
        return is_bool(node.args[0])
    return isinstance(value, torch.Tensor) and value.dtype is torch.bool
