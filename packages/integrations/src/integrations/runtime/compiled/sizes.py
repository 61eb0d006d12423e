"""Sizes that vary: for which of them the memory of a compiled graph is counted, and that it runs for no larger ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import SymInt, Tensor
from torch.fx import Graph

from integrations._utils.compiling import left_to_python
from integrations.capture.graphs.signature import Signature
from integrations.policies.aten_nodes import hint

# .given: the arguments of the forward that runs; .limits: by symbol, the size that is counted
_here = threading.local()


Given = tuple[tuple[Any, ...], Mapping[str, Any]]


@left_to_python
def note_given(given: Given | None) -> Given | None:
    """Notes the arguments of the forward for which graphs are compiled from now on. Returns those before."""
    before: Given | None = getattr(_here, "given", None)
    _here.given = given
    return before


class Limits:
    """The largest sizes for which a graph's memory is counted.

    A graph that is compiled for a smaller input than the planned one is counted for the planned size. A larger input
    is counted as it is.

    Args:
        graph: the graph.
        planned: what the plan is for.

    Attributes:
        exceeds: whether the forward's inputs are larger than the planned ones, as far as the forward is known.
    """

    def __init__(self, graph: Graph, planned: Signature) -> None:
        larger, self.exceeds = _compare_sizes(planned)
        self._sizes = list(_varying_sizes(graph))
        from sympy import Integer  # type: ignore[import-untyped]  # only a compiler needs it

        self._symbols: dict[Any, Any] = {}
        for size in self._sizes:
            now, symbol = hint(size), size.node.expr
            self._symbols[symbol] = Integer(max(now, larger.get(now, 0), _declared(size)))

    @contextmanager
    def counted(self) -> Iterator[None]:
        """A block in which ``largest`` gives these sizes."""
        before = getattr(_here, "limits", None)
        _here.limits = self._symbols
        try:
            yield
        finally:
            _here.limits = before

    def hold(self) -> None:
        """Has torch compile the graph anew for larger sizes, by guards."""
        with self.counted():
            for size in self._sizes:
                bool(size <= largest(size))


def _declared(size: SymInt) -> int:
    """The largest size that the user has declared, by ``mark_dynamic(x, 0, max=64)``; 0 for none."""
    bounds = getattr(size.node.shape_env, "var_to_range", {}).get(size.node.expr)
    most: Any = getattr(bounds, "upper", None)
    return int(most) if getattr(most, "is_Integer", False) and most < _UNLIMITED else 0


_UNLIMITED = 1 << 31  # torch gives it to sizes of which nothing is known


def largest(size: Any) -> int:
    """A size. Of one that varies, the largest that is counted for it."""
    limits, node = getattr(_here, "limits", None), getattr(size, "node", None)
    if not limits or node is None:
        return hint(size)
    found = node.expr.xreplace(limits)
    return int(found) if found.is_number else hint(size)


def largest_bytes(value: Tensor) -> int:
    """Return the bytes of a tensor's elements. Of sizes that vary, the largest are counted.

    ``Tensor.nbytes`` raises for a fake tensor whose sizes vary.
    """
    return largest(value.numel()) * value.element_size()


def find_unknown_size(graph: Graph) -> str:
    """The name of a node whose size only the data tell, as that of a selection by a mask; empty if there is none."""
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, Tensor) and any(isinstance(size, SymInt) and _is_unknown(size) for size in value.shape):
            return str(node.name)
    return ""


def _is_unknown(size: SymInt) -> bool:
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols  # imports sympy

    return bool(free_unbacked_symbols(size))


def _varying_sizes(graph: Graph) -> Iterator[SymInt]:
    """The sizes that vary of what a graph is given, as far as they are no expressions of others."""
    seen = set()
    for node in graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, Tensor) else (value,):
            if isinstance(size, SymInt) and size.node.expr.is_Symbol and size.node.expr not in seen:
                seen.add(size.node.expr)
                yield size


def _compare_sizes(planned: Signature) -> tuple[dict[int, int], bool]:
    """The planned sizes by the smaller ones of the forward's inputs, and whether any of those is larger."""
    given = getattr(_here, "given", None)
    if given is None:
        return {}, False
    found = Signature.of(*given)
    if [*map(len, found.shapes)] != [*map(len, planned.shapes)]:
        return {}, False
    larger: dict[int, int] = {}
    exceeds = False
    for shape, limits in zip(found.shapes, planned.shapes, strict=True):
        for size, limit in zip(shape, limits, strict=True):
            exceeds = exceeds or size > limit
            if size < limit:
                larger[size] = max(limit, larger.get(size, 0))
    return larger, exceeds
