"""Which memory a graph of aten operators makes, and until when it is alive once the compiler has fused what it can."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, Node

from integrations.capture.dispatch.memory import iter_tensors
from integrations.runtime.compiled.fusion_groups import FusionGroups
from integrations.runtime.compiled.realized import can_fuse, computes_argument, find_realized, find_sums
from integrations.runtime.compiled.sizes import largest, largest_bytes

_PRIMALS = "primals"  # the start of the names that AOTAutograd gives to a forward's inputs

_FORWARD, _BACKWARD = torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default


@dataclass(eq=False)
class Memory:
    """A storage that a graph makes or is given.

    Attributes:
        nbytes: its bytes.
        maker: the node that makes it.
        nodes: the nodes whose results lie in it, views included.
        readers: the operators that read it, in order, views left out.
    """

    nbytes: int
    maker: Node
    nodes: list[Node] = field(default_factory=list)
    readers: list[Node] = field(default_factory=list)


class Waiting(NamedTuple):
    """The stored form of a tensor that is compressed between forward and backward.

    Attributes:
        nbytes: bytes of the stored form.
        beside: bytes of the workspace for storing and for restoring.
        restored: bytes of the restored tensor.
    """

    nbytes: int
    beside: int
    restored: int


_NONE: Mapping[Memory, Waiting] = MappingProxyType({})


class GraphMemory:
    """The memory of a graph.

    Args:
        graph: the graph.
        counts: whether an input of the graph is memory of its own.
        part: which of several parts a node belongs to; what one part makes is not fused into another.
        joins_sums: whether the compiler gets this graph, and joins products of matrices with the sums that read them.

    Attributes:
        order: the graph's nodes.
        memories: by storage.
        made: by node: the memory that it makes.
        lasting: what the graph returns.
        fused: nodes that the compiler computes in the kernels that read them, so that they have no memory of their own.
    """

    def __init__(
        self, graph: Graph, counts: Callable[[Node], bool], part: Callable[[Node], object], joins_sums: bool = False
    ) -> None:
        self.order = list(graph.nodes)
        self.memories: dict[int, Memory] = {}
        self.made: dict[Node, list[Memory]] = defaultdict(list)
        self._find(counts)
        results = graph.output_node().all_input_nodes
        self.lasting = {memory for node in results for memory in self.find_memories(node)}
        sums = find_sums(self.order) if joins_sums else {}
        self._totals = {*sums.values()}
        realized = find_realized(self.order, part, sums)
        self.fused = frozenset(
            node for node in self.order if node in sums or (node not in realized and self._is_fused(node, part))
        )

    def _find(self, counts: Callable[[Node], bool]) -> None:
        for node in self.order:
            if node.op == "output" or (node.op == "placeholder" and not counts(node)):
                continue
            for storage, nbytes in _storages(node):
                memory = self.memories.get(storage)
                if memory is None and not any(storage in dict(_storages(given)) for given in node.all_input_nodes):
                    memory = self.memories[storage] = Memory(nbytes, node)
                    self.made[node].append(memory)
                if memory is not None and node not in memory.nodes:
                    memory.nodes.append(node)
        for node in self.order:
            if node.op == "call_function" and node in self.made:
                for memory in dict.fromkeys(one for given in node.all_input_nodes for one in self.find_memories(given)):
                    memory.readers.append(node)

    def find_memories(self, node: Node) -> list[Memory]:
        """The memory in which a node's results lie."""
        found = (self.memories.get(storage) for storage, _ in _storages(node))
        return [memory for memory in found if memory is not None]

    def _is_fused(self, node: Node, part: Callable[[Node], object]) -> bool:
        made = self.made.get(node, ())
        if len(made) != 1 or made[0] in self.lasting or not can_fuse(node):
            return False
        readers = [one for one in made[0].readers if part(one) == part(node)]
        return bool(readers) and all(can_fuse(one) or computes_argument(one, node) for one in readers)

    def read_by(
        self, node: Node, through: Callable[[Memory], bool] | None = None, without: Iterable[Node] = ()
    ) -> list[Memory]:
        """The memory that an operator reads, with what those read that are fused into it.

        Args:
            node: the operator.
            through: whether memory is looked through, to what its maker reads; by default that of ``fused``.
            without: nodes that are taken not to be read.
        """
        found: dict[Memory, None] = {}
        waiting, seen = [node], {node}
        left_out = set(without)
        while waiting:
            for given in [one for one in waiting.pop().all_input_nodes if one not in left_out]:
                for memory in self.find_memories(given):
                    if not (memory.maker in self.fused if through is None else through(memory)):
                        found[memory] = None
                    elif memory.maker not in seen:
                        seen.add(memory.maker)
                        waiting.append(memory.maker)
        return list(found)

    def kernels(self) -> list[Node]:
        """The operators that make memory, in order."""
        return [node for node in self.order if node.op == "call_function" and node in self.made.keys() - self.fused]

    def find_groups(self, kernels: Sequence[Node]) -> FusionGroups:
        """The kernels that inductor may fuse."""
        reads = {node: [memory.maker for memory in self.read_by(node)] for node in kernels}
        return FusionGroups(kernels, reads, lambda node: can_fuse(node) and node not in self._totals)

    def alive(
        self,
        kernels: Iterable[Node],
        memories: Iterable[Memory],
        lasting: Iterable[Memory],
        waiting: Mapping[Memory, Waiting] = _NONE,
        is_backward: bool = False,
        groups: FusionGroups | None = None,
        is_fused: bool = False,
    ) -> list[int]:
        """The bytes of these memories, and of copies for convolutions, that are alive while each kernel runs.

        Args:
            kernels: in order.
            memories: those that count. What none of the kernels makes is alive from the start.
            lasting: those that are alive to the end.
            waiting: the stored forms of those that are compressed. A kernel's result is stored after the last kernel
                that reads it; an input of the graph is restored before the first one.
            is_backward: whether the graph is the backward of another, which has made the copies for convolutions.
            groups: the kernels that inductor may fuse. What a kernel reads is alive until all have run that may be
                fused with it; with ``None``, until the next one has run, since the order may change.
            is_fused: whether ``groups`` are fused as far as they may be; otherwise nothing is.
        """
        kernels = list(kernels)
        events = groups.find_order() if groups is not None and is_fused else range(len(kernels))
        place = dict(zip(kernels, events, strict=True))
        first: dict[Memory, int] = {}
        last: dict[Memory, int] = {}
        for number, node in enumerate(kernels):
            end = number + 1 if groups is None else place[node] if is_fused else groups.find_last(number)
            for memory in self.read_by(node):
                first[memory] = min(place[node], first.get(memory, place[node]))
                last[memory] = max(end, last.get(memory, end))
        stays, changes = set(lasting), [0] * (len(place) + 2)
        inside, over = set[Node](), dict[Node | None, int]()
        if groups is not None:
            inside.update(filter(groups.is_inside, kernels))
            over.update((groups.find_overwritten(node), place[node] - 1) for node in kernels)

        def add(nbytes: int, start: int, end: int | None) -> None:
            changes[start] += nbytes
            if end is not None:
                changes[min(end, len(place)) + 1] -= nbytes

        for memory in memories:
            born, form = place.get(memory.maker, 0), waiting.get(memory)
            end = last.get(memory, born + (groups is None))
            is_free = memory not in stays and form is None and groups is not None
            if memory.maker in self.fused or (is_free and memory.maker in inside):
                continue
            until = None if memory in stays else end
            if form is None:
                add(memory.nbytes, born, over.get(memory.maker, until) if is_free else until)
            elif memory.maker.op == "placeholder":
                start = first.get(memory, 0)
                add(form.nbytes, 0, start)
                add(form.beside, start, start)
                if memory in first:
                    add(form.restored, start, None if until is None else end + 1)
            else:
                add(memory.nbytes, born, None if until is None else end + 1)
                add(form.nbytes, end, None)
                add(form.beside, end, end)
        for start, end, nbytes in self._copies(place):
            add(nbytes, 0 if is_backward else start, end)
        alive = list(itertools.accumulate(changes))
        return [alive[place[node]] for node in kernels]

    def count_copies(self) -> int:
        """The bytes of the copies for convolutions that are alive from a graph's start, or to its end."""
        return sum(nbytes for _, _, nbytes in self._copies(dict.fromkeys(self.kernels(), 0)))

    def _copies(self, place: dict[Node, int]) -> Iterator[tuple[int, int, int]]:
        """The copies with channels last that inductor makes of a convolution's weight, and of its image where that is
        given to the graph, and keeps for backward: the first and the last kernel that they are alive in, and their
        bytes."""
        last = len(place) - 1
        ends: dict[str, int] = {}
        for node, event in place.items():
            if node.target is _BACKWARD:
                ends.update((given.name, event) for given in node.args[1:3] if isinstance(given, Node))
        starts: dict[str, int] = {}
        for node, event in place.items():
            if node.target is _FORWARD:
                starts.update((given.name, event) for given in node.args[:2] if isinstance(given, Node))
        for node in self.order:
            if node.name in starts or node.name in ends:
                yield starts.get(node.name, 0), ends.get(node.name, last), _bytes_of_copy(node)


def _bytes_of_copy(node: Node) -> int:
    """The bytes of a copy with channels last of what a graph is given; 0 where inductor makes none. Activations that
    backward is given have the layout already."""
    value = node.meta.get("val")
    if node.op != "placeholder" or not node.name.startswith(_PRIMALS) or not isinstance(value, Tensor):
        return 0
    if value.dim() != 4 or value.device.type != "cpu" or value.is_contiguous(memory_format=torch.channels_last):
        return 0
    return largest_bytes(value)


def get_results(node: Node) -> tuple[Any, ...]:
    """The tensors that a node returns, as far as it returns tensors."""
    value = node.meta.get("val")
    return tuple(iter_tensors(value if isinstance(value, (list, tuple)) else (value,)))


def _storages(node: Node) -> list[tuple[int, int]]:
    """The storages of a node's results, with their bytes."""
    strided = (tensor for tensor in get_results(node) if tensor.layout is torch.strided)
    return [(tensor.untyped_storage()._cdata, largest(tensor.untyped_storage().nbytes())) for tensor in strided]
