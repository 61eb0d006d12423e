"""``make_choices``: which operators inductor runs in one kernel in graphs that have a budget.

Inductor joins operators that read the same, if their results do not depend on each other, so that this is read once.
All that the kernel reads and makes is then alive at once, and what the earlier operator reads is alive until the later
one. In graphs with a budget they are joined only where nothing is alive for longer: where the later operator, or one
behind it, reads that as well.

It also joins an operator with the one that reads its result. A reader that copies it into the result of ``cat``, or
adds it at indices, may run much later. For example, backward of a DiT concatenates sums at its end, and the tensors
that are added up would be alive until then.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

from integrations._utils.torch_internals import inductor_virtualized
from integrations.policies.aten_nodes import get_operator
from integrations.runtime.compiled.realized import SCATTERS

_PLACING = SCATTERS | {"cat"}

_readers: WeakKeyDictionary[Any, dict[str, list[str]]] = WeakKeyDictionary()
"""By scheduler, by name of a buffer: the names of the nodes that read it. A node would keep its scheduler alive."""


def make_choices(users: Any) -> Any:
    """What inductor asks which nodes to join.

    Args:
        users: the ``InductorChoices`` that it would ask, which still says everything else.
    """
    made, kind = copy.copy(users), users.__class__
    made.__class__ = _get_type(kind)
    return made


@cache
def _get_type(users: Any) -> Any:
    class Choices(users):  # type: ignore[misc]
        """As the user's, but keeps nothing alive for longer."""

        def can_fuse_horizontal(self, scheduler: Any, node1: Any, node2: Any, shared_data_score: int) -> bool:
            """Whether two nodes that do not depend on each other are joined."""
            allowed = super().can_fuse_horizontal(scheduler, node1, node2, shared_data_score)
            return allowed and not lengthens(scheduler, node1, node2, find_lasting())

        def can_fuse_vertical(self, scheduler: Any, node1: Any, node2: Any, shared_data_score: int) -> bool:
            """Whether a node is joined with one that reads its result."""
            allowed = super().can_fuse_vertical(scheduler, node1, node2, shared_data_score)
            return allowed and not (is_placed(node2) and lengthens(scheduler, node1, node2, find_lasting()))

    return Choices


def is_ours(choices: Any) -> bool:
    """Whether inductor asks what ``make_choices`` has made."""
    return type(choices).__module__ == __name__


def find_lasting() -> frozenset[str]:
    """The names of what is alive as long as the graph that is compiled: parameters, and what it returns."""
    graph = inductor_virtualized().graph
    return frozenset(name for name in graph.graph_inputs if name.startswith("primals")) | {*graph.get_output_names()}


def is_placed(node: Any) -> bool:
    """Whether a scheduler's node copies something into the result of ``cat``, or writes at indices."""
    made = [getattr(member.node, "origins", ()) for member in node.get_nodes()]
    return any(get_operator(operator) in _PLACING for operators in made for operator in operators)


def lengthens(scheduler: Any, node1: Any, node2: Any, lasting: frozenset[str] = frozenset()) -> bool:
    """Whether something would be alive for longer if two nodes ran in one kernel, where the later one is.

    Args:
        scheduler: inductor's, with ``nodes``, and by their names ``name_to_fused_node``.
        node1, node2: nodes of it, with ``max_order``, the place of their last operator.
        lasting: names of buffers that are not freed.
    """
    early, late = sorted((node1, node2), key=lambda node: node.max_order)
    also = {read.name for read in late.read_writes.reads} | lasting
    if any(
        max(_find_places(scheduler, read.name), default=-1) < late.max_order
        for read in early.read_writes.reads
        if read.name not in also
    ):
        return True
    made = {write.name for write in early.read_writes.writes}
    return any(early.max_order < place < late.max_order for name in made for place in _find_places(scheduler, name))


def _find_places(scheduler: Any, buffer: str) -> list[int]:
    """The places at which a buffer is read."""
    readers = _readers.get(scheduler)
    if readers is None:
        readers = _readers[scheduler] = defaultdict(list)
        for node in scheduler.nodes:
            for read in node.read_writes.reads:
                readers[read.name].append(node.get_name())
    joined = scheduler.name_to_fused_node
    return [joined[node].max_order for node in readers.get(buffer, ())]
