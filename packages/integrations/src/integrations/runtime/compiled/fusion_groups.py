"""``FusionGroups``: which kernels of a graph inductor may fuse, and which results then need no memory.

Inductor fuses a pointwise operator or a reduction with others of these that read its result, unless an operator of
another kind has to run in between, such as a product. The fused kernel runs where the last of them was
(``scheduling``), and what any of them reads is alive until then.

Where all are pointwise, of the same size, and none has to wait for an operator of another kind, the fused kernel keeps
a result that only they read in registers. It writes a result over a product of matrices that is not read again.
Measured peaks were compared with these rules on a CPU alone.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.fx import Node

from integrations._utils.torch_internals import OpOverload, inductor_config
from integrations.policies.aten_nodes import get_operator
from integrations.runtime.compiled.realized import GATHERS, REDUCTIONS
from integrations.runtime.compiled.sizes import largest

_PRODUCTS = frozenset(("mm", "addmm", "bmm", "baddbmm"))
_RESHAPES = frozenset(("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze"))
_POINTWISE = frozenset(("clone", "_to_copy", "convert_element_type"))  # besides those that torch tags so
_CONSTANTS = frozenset(("full", "scalar_tensor"))
_DEVICES = frozenset(("cpu", "cuda"))
_AUTOTUNING = ("max_autotune", "max_autotune_gemm")  # settings with which pointwise operators are fused into products
# Settings with which inductor measures whether fused kernels are faster, or bounds the buffers that they take.
_DECIDING = ("benchmark_fusion", "max_fusion_unique_io_buffers")
_MOST_FUSED = (None, "max_fusion_size", 64), ("cpp", "max_horizontal_fusion_size", 16)
"""Settings with the most kernels that inductor fuses, each with its section and default. On a CPU, the second bounds
those that read the same; it is taken elsewhere, too, where inductor may fuse more."""


class FusionGroups:
    """The kernels of a graph that inductor may fuse.

    Args:
        kernels: in order.
        reads: by kernel: the nodes that make the memory that it reads, kernels or others.
        can_fuse: whether a kernel may be fused with others at all.
    """

    def __init__(
        self,
        kernels: Sequence[Node],
        reads: Mapping[Node, Sequence[Node]],
        can_fuse: Callable[[Node], bool],
    ) -> None:
        self._kernels, self._reads = kernels, reads
        self._place = {node: place for place, node in enumerate(kernels)}
        self._readers: dict[Node, list[int]] = defaultdict(list)
        for place, node in enumerate(kernels):
            for one in reads[node]:
                self._readers[one].append(place)
        self._fusible = [can_fuse(node) for node in kernels]
        self._before, self._blocked = self._find_before()
        self._members = [1 << place for place in range(len(kernels))]  # by kernel, as bits of places: its group
        near = list(range(len(kernels)))  # by kernel: another that it may be fused with, or itself; roots of trees
        in_order = [_reads_in_order(node) for node in kernels]
        for place, node in enumerate(kernels):
            for one in reads[node] if self._fusible[place] else ():
                maker = self._place.get(one, place)
                for other in {maker, *self._readers[one]}:
                    if other < place and self._may_fuse(other, place):
                        if in_order[other] == in_order[place]:
                            near[_find_root(near, other)] = _find_root(near, place)
                        if other == maker and in_order[place]:
                            self._join(other, place)
        self._order = self._divide_cycles()
        config = inductor_config()
        self._is_autotuned = any(getattr(config, name, False) for name in _AUTOTUNING)
        self._overwrites = bool(getattr(config, "inplace_buffers", False))
        is_decided = self._is_autotuned or any(getattr(config, name, None) for name in _DECIDING)
        self._certain = {} if is_decided else self._find_certain(near)

    def _find_before(self) -> tuple[list[int], list[int]]:
        """By kernel, as bits of places: those that it waits for, and of these, those that it waits for through one that
        cannot be fused."""
        before, blocked = [0] * len(self._kernels), [0] * len(self._kernels)
        for place, node in enumerate(self._kernels):
            for maker in [self._place[one] for one in self._reads[node] if one in self._place]:
                before[place] |= before[maker] | 1 << maker
                blocked[place] |= blocked[maker] if self._fusible[maker] else before[maker]
        return before, blocked

    def _may_fuse(self, one: int, later: int) -> bool:
        if not self._fusible[one] or self._blocked[later] >> one & 1:
            return False
        return _count_iterations(self._kernels[one]) == _count_iterations(self._kernels[later])

    def _join(self, one: int, other: int) -> None:
        """Puts two kernels in one group, if the group can run at once."""
        members = self._members[one] | self._members[other]
        if self._runs_at_once(members):
            for place in _find_bits(members):
                self._members[place] = members

    def _runs_at_once(self, members: int) -> bool:
        """Whether no other kernel has to run behind one of these and before another."""
        places = _find_bits(members)
        between = [place for place in range(places[0], places[-1]) if not members >> place & 1]
        return not any(
            self._before[place] & members and any(self._before[one] >> place & 1 for one in places) for place in between
        )

    def _divide_cycles(self) -> dict[int, int]:
        """Divides groups into their kernels until no groups wait for each other. Returns the event of each group."""
        while True:
            events, waits = self._sort(self._members)
            if not waits:
                return events
            path = [next(iter(waits))]
            while (one := next(iter(waits[path[-1]]))) not in path:
                path.append(one)
            cycle = path[path.index(one) :]
            for place in _find_bits(max(one for one in cycle if one.bit_count() > 1)):
                self._members[place] = 1 << place

    def _sort(self, members: Sequence[int]) -> tuple[dict[int, int], dict[int, set[int]]]:
        """By group: its event, where each runs where the last of its members was. And of those that cannot run, since
        they wait for themselves or are behind such: the groups that they wait for.

        Args:
            members: by kernel, as bits of places: its group.
        """
        waits: dict[int, set[int]] = {}
        after: dict[int, set[int]] = defaultdict(set)
        for group in dict.fromkeys(members):
            makers = (one for place in _find_bits(group) for one in self._reads[self._kernels[place]])
            waits[group] = {members[self._place[one]] for one in makers if one in self._place} - {group}
            for one in waits[group]:
                after[one].add(group)
        ready = [group for group in waits if not waits[group]]  # of two, the one with the later member is larger
        heapq.heapify(ready)
        events: dict[int, int] = {}
        while ready:
            events[done := heapq.heappop(ready)] = len(events)
            del waits[done]
            for one in after[done]:
                waits[one].discard(done)
                if not waits[one]:
                    heapq.heappush(ready, one)
        return events, waits

    def _find_certain(self, near: list[int]) -> dict[int, int]:
        """By kernel: the number of its group, of groups that inductor's rules fuse as a whole. Of groups that would
        wait for each other, it may fuse either, so that neither is taken."""
        groups: dict[int, list[int]] = defaultdict(list)
        for place, fusible in enumerate(self._fusible):
            if fusible:
                groups[_find_root(near, place)].append(place)
        most, found = _get_most_fused(), [1 << place for place in range(len(self._kernels))]
        chosen: dict[int, int] = {}
        for root, places in groups.items():
            members = sum(1 << place for place in places)
            nodes = [self._kernels[place] for place in places]
            if len(places) > most or len({_count(node) for node in nodes}) > 1:
                continue
            if all(map(self._is_pointwise, nodes)) and self._runs_at_once(members):
                chosen.update(dict.fromkeys(places, root))
                for place in places:
                    found[place] = members
        _, waits = self._sort(found)
        return {place: root for place, root in chosen.items() if found[place] not in waits}

    def _is_pointwise(self, kernel: Node) -> bool:
        """Whether a kernel computes each element from numbers and from the elements at the same place of others."""
        waiting, seen = [kernel], {kernel}
        while waiting:
            node = waiting.pop()
            if not _is_flat(node, _count(kernel)):
                return False
            if node is not kernel and (node in self._place or _is_source(node)):
                continue
            if not _is_elementwise(node):
                return False
            new = [one for one in node.all_input_nodes if one not in seen]
            seen.update(new)
            waiting += new
        return True

    def find_last(self, place: int) -> int:
        """The place until which what a kernel reads may be alive: the last of those it may be fused with."""
        return place + 1 if self._is_autotuned else self._members[place].bit_length() - 1

    def is_inside(self, maker: Node) -> bool:
        """Whether only the fused kernel reads a result that it computes, so that the result has no memory."""
        group = self._certain.get(self._place.get(maker, -1))
        readers = self._readers[maker]
        return group is not None and len(readers) > 0 and all(self._certain.get(one) == group for one in readers)

    def find_overwritten(self, kernel: Node) -> Node | None:
        """The product of matrices over which a kernel writes its result, since nothing else reads it."""
        if not self._overwrites or self._place[kernel] not in self._certain or self.is_inside(kernel):
            return None
        return next((one for one in self._reads[kernel] if self._is_overwritten(one, kernel)), None)

    def _is_overwritten(self, product: Node, kernel: Node) -> bool:
        if product not in self._place or get_operator(product) not in _PRODUCTS or len(self._readers[product]) > 1:
            return False
        return _count(product) == _count(kernel) and product.meta["val"].dtype == kernel.meta["val"].dtype

    def find_order(self) -> list[int]:
        """By kernel: its event where all are fused that may be. Each runs where the last of its group was."""
        return [self._order[group] for group in self._members]


def _get_most_fused() -> int:
    config, found = inductor_config(), []
    for section, name, default in _MOST_FUSED:
        found.append(int(getattr(config if section is None else getattr(config, section, None), name, default)))
    return min(found)


def _find_root(forest: list[int], place: int) -> int:
    while forest[place] != place:
        place = forest[place]
    return place


def _find_bits(bits: int) -> list[int]:
    found = []
    while bits:
        found.append((bits & -bits).bit_length() - 1)
        bits &= bits - 1
    return found


def _count(node: Node) -> int:
    return largest(node.meta["val"].numel())


def _count_iterations(kernel: Node) -> int:
    """Of how many elements a kernel computes its result: a reduction, of those that it reduces."""
    if get_operator(kernel) in GATHERS:  # of a table, which may be larger, it reads the elements of its result
        return _count(kernel)
    tensors = [one for one in (kernel, *kernel.all_input_nodes) if isinstance(one.meta.get("val"), Tensor)]
    return max(map(_count, tensors), default=0)


def _reads_in_order(kernel: Node) -> bool:
    """Whether a kernel goes through the elements in the same order as the operator that makes its input. On a CPU, a
    sum does not if it adds up other dimensions than the last ones, and inductor does not fuse it."""
    value = kernel.all_input_nodes[0].meta.get("val") if kernel.all_input_nodes else None
    if get_operator(kernel) not in REDUCTIONS or not isinstance(value, Tensor) or value.device.type != "cpu":
        return True
    dims = kernel.args[1] if len(kernel.args) > 1 else None
    if dims is None or dims == []:
        return True
    listed = dims if isinstance(dims, list | tuple) else [dims]
    reduced = {dim % value.dim() for dim in listed if isinstance(dim, int)}
    return reduced == {*range(value.dim() - len(reduced), value.dim())}


def _is_flat(node: Node, count: int) -> bool:
    """Whether a node's result is a number or has so many elements, one after the other in memory."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or value.device.type not in _DEVICES:
        return False
    if not all(type(size) is int for size in value.shape):
        return False  # with sizes that vary, inductor may not see that two places are the same
    return value.numel() == 1 or (value.numel() == count and value.is_contiguous())


def _is_source(node: Node) -> bool:
    """Whether a node computes nothing from others: an input of the graph, a result of several, or a constant."""
    return node.op != "call_function" or not isinstance(node.target, OpOverload) or get_operator(node) in _CONSTANTS


def _is_elementwise(node: Node) -> bool:
    target, name = node.target, get_operator(node)
    if name in _RESHAPES:
        return all(one.meta["val"].dtype == node.meta["val"].dtype for one in node.all_input_nodes)
    return isinstance(target, OpOverload) and (torch.Tag.pointwise in target.tags or name in _POINTWISE)
