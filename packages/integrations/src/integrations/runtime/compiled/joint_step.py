"""``JointStep``: the training step of a joint graph, in the terms that plans are searched in.

AOTAutograd traces forward and backward into one graph of aten operators. Its forward's operators and values become a
``Graph``, as those of an eager step do, with two differences. The compiler fuses pointwise operators and reductions into
the kernels that read them, so that such a value has no memory of its own while only they read it: it is part of its
readers. And what backward computes is known operator by operator, so that its memory follows from the graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from integrations._utils.torch_internals import OpOverload
from integrations.capture.costs.modelled import estimate_work
from integrations.capture.costs.rates import Rates, Rating
from integrations.capture.dispatch.memory import iter_tensors
from integrations.capture.dispatch.operators import get_traits
from integrations.capture.graphs.graph import Graph, Op, Step, Value
from integrations.capture.graphs.signature import Signature
from integrations.policies.aten_nodes import hint
from integrations.policies.operators import OPERATORS, Kernel

_TANGENTS = "tangents"  # the start of the names that AOTAutograd gives to gradients of the forward's results
_EXTERN = (Kernel.PRODUCT, Kernel.CONVOLUTION, Kernel.CONVOLUTION_BACKWARD, Kernel.ATTENTION, Kernel.CHUNKED)
_NOT_FUSED = frozenset(one.name for entry in OPERATORS for one in entry.kernels if one.kernel in _EXTERN)


@dataclass(eq=False)
class _Memory:
    """A storage that the graph makes.

    Attributes:
        nbytes: its bytes.
        maker: the operator that makes it.
        nodes: the nodes whose results lie in it, views included.
        readers: the operators that read it, in order, views left out.
    """

    nbytes: int
    maker: Node
    nodes: list[Node] = field(default_factory=list)
    readers: list[Node] = field(default_factory=list)


class JointStep:
    """The training step of a joint graph.

    Args:
        joint: the graph.
        forward_outputs: how many of its results are those of the forward.
        rating: the rates of operators.

    Attributes:
        nodes: by value of ``graph``: the nodes whose results it is, with views of it.
        fused: nodes of the forward that have no memory of their own, and are part of the operators that read them.
    """

    def __init__(self, joint: GraphModule, forward_outputs: int, rating: Rating) -> None:
        self._order = list(joint.graph.nodes)
        self._rating = rating
        outputs = list(joint.graph.output_node().args[0])  # type: ignore[arg-type]
        self._results = [node for node in outputs[:forward_outputs] if isinstance(node, Node)]
        self._gradients = [node for node in outputs[forward_outputs:] if isinstance(node, Node)]
        self._forward = _reaching(self._results)
        self._memories: dict[int, _Memory] = {}  # by storage
        self._made: dict[Node, list[_Memory]] = defaultdict(list)
        self._find_memories()
        self._lasting = {id(memory) for node in self._results for memory in self._memories_of(node)}
        self.fused = frozenset(node for node in self._order if self._is_fused(node))
        self.nodes: list[tuple[Node, ...]] = []

    # ---- memory ----

    def _find_memories(self) -> None:
        """Finds which storage each node's result lies in, who makes it and who reads it."""
        for node in self._order:
            if node.op == "output" or (node.op == "placeholder" and not node.name.startswith(_TANGENTS)):
                continue
            for storage, nbytes in _storages(node.meta.get("val")):
                memory = self._memories.get(storage)
                if memory is None and not any(storage in _ids(given) for given in node.all_input_nodes):
                    memory = self._memories[storage] = _Memory(nbytes, node)
                    self._made[node].append(memory)
                if memory is not None and node not in memory.nodes:
                    memory.nodes.append(node)
        for node in self._order:
            if node.op == "call_function" and not self._is_view(node):
                for memory in dict.fromkeys(one for given in node.all_input_nodes for one in self._memories_of(given)):
                    memory.readers.append(node)

    def _memories_of(self, node: Node) -> list[_Memory]:
        found = (self._memories.get(storage) for storage, _ in _storages(node.meta.get("val")))
        return [memory for memory in found if memory is not None]

    def _is_view(self, node: Node) -> bool:
        """Whether a node makes no memory: a view, or one of several results."""
        return node not in self._made

    def _is_fused(self, node: Node) -> bool:
        """Whether the compiler computes a node in the kernels that read it."""
        made = self._made.get(node, ())
        return len(made) == 1 and _can_fuse(node) and self._only_fused_readers(node, made[0])

    def _only_fused_readers(self, node: Node, memory: _Memory) -> bool:
        kept = id(memory) in self._lasting or any(one in self._gradients for one in memory.nodes)
        readers = [one for one in memory.readers if (one in self._forward) == (node in self._forward)]
        return not kept and bool(readers) and all(_can_fuse(one) for one in readers)

    def _read_by(self, node: Node) -> list[_Memory]:
        """The memory that a node reads, with what those read that are fused into it."""
        found: dict[int, _Memory] = {}
        waiting, seen = [node], {node}
        while waiting:
            for given in waiting.pop().all_input_nodes:
                for memory in self._memories_of(given):
                    maker = memory.maker
                    same = (maker in self._forward) == (node in self._forward)
                    if maker in self.fused and same:
                        if maker not in seen:
                            seen.add(maker)
                            waiting.append(maker)
                    else:
                        found.setdefault(id(memory), memory)
        return list(found.values())

    # ---- the step ----

    @cached_property
    def graph(self) -> Graph:
        """The step of a model that has no gradients yet."""
        makers = [node for node in self._order if node in self._forward and node in self._made]
        saved = {
            id(memory)
            for node in self._order
            if node.op == "call_function" and node not in self._forward
            for memory in self._direct(node)
        }
        # A fused value is a value of its own only if backward reads it.
        makers = [
            node
            for node in makers
            if node.op == "call_function" and (node not in self.fused or id(self._made[node][0]) in saved)
        ]
        number: dict[int, int] = {}  # of a value, by memory
        ops: list[Op] = []
        place: dict[Node, int] = {}
        for node in makers:
            place[node] = len(ops)
            reads = tuple(number[id(one)] for one in self._read_with_values(node, number) if id(one) in number)
            makes = []
            for memory in self._made[node]:
                number[id(memory)] = len(self.nodes)
                makes.append(len(self.nodes))
                self.nodes.append(tuple(one for one in memory.nodes if one in self._forward))
            ops.append(self._op(node, reads, tuple(makes)))
        steps, other = self._backward(number)
        last = len(ops) + len(steps) - 1
        read_last = self._last_reads(number, place)
        saved_last = {value: len(ops) + event for event, step in enumerate(steps) for value in step.reads}
        values = []
        for node in makers:
            for memory in self._made[node]:
                value = number[id(memory)]
                hidden = node in self.fused
                until = last if id(memory) in self._lasting else read_last.get(value, place[node])
                values.append(
                    Value(memory.nbytes, place[node], until=-1 if hidden else until, saved=saved_last.get(value, -1))
                )
        return Graph(
            ops=tuple(ops),
            values=tuple(values),
            steps=steps,
            other=(0,) * len(ops) + other,
            outputs=tuple(number[one] for one in sorted(self._lasting) if one in number),
            gradients=self._gradient_bytes,
            fingerprint="",
            inputs=Signature.of((), {}),
            standing=(0,) * (len(ops) + len(steps)),
        )

    @cached_property
    def _gradient_bytes(self) -> int:
        memories = {id(one): one for node in self._gradients for one in self._memories_of(node)}
        return sum(memory.nbytes for memory in memories.values() if memory.maker not in self._forward)

    def _direct(self, node: Node) -> Iterator[_Memory]:
        """The forward's memory that an operator of backward reads."""
        for given in node.all_input_nodes:
            for memory in self._memories_of(given):
                if memory.maker in self._forward and memory.maker.op == "call_function":
                    yield memory

    def _read_with_values(self, node: Node, number: dict[int, int]) -> list[_Memory]:
        """What an operator of the forward reads: fused values are looked through, unless they are values."""
        found: dict[int, _Memory] = {}
        waiting, seen = [node], {node}
        while waiting:
            for given in waiting.pop().all_input_nodes:
                for memory in self._memories_of(given):
                    if id(memory) in number:
                        found.setdefault(id(memory), memory)
                    elif memory.maker in self.fused and memory.maker not in seen:
                        seen.add(memory.maker)
                        waiting.append(memory.maker)
        return list(found.values())

    def _last_reads(self, number: dict[int, int], place: dict[Node, int]) -> dict[int, int]:
        """By value: the last operator of the forward that reads it, by itself or through what is fused into it."""
        found: dict[int, int] = {}
        for node, at in place.items():
            for memory in self._read_by(node):
                value = number.get(id(memory))
                if value is not None:
                    found[value] = max(found.get(value, -1), at)
        return found

    def _op(self, node: Node, reads: Sequence[int], makes: tuple[int, ...]) -> Op:
        seconds, scratch = self._cost(node)
        known = isinstance(node.target, OpOverload)
        traits = get_traits(node.target) if known else None
        repeatable = traits is not None and not traits.random and traits.known and not traits.writes
        return Op(
            name=str(node.target),
            module="",
            reads=tuple(reads),
            makes=makes,
            seconds=seconds,
            repeatable=repeatable and not _is_collective(node),
            packs=(),
            shapes=(),
            scratch=scratch,
        )

    def _cost(self, node: Node) -> tuple[float, int]:
        """The seconds of an operator that backward repeats, and its workspace. A fused one takes no traffic of its own,
        only a look at its inputs."""
        if not isinstance(node.target, OpOverload):
            return 0.0, 0
        work = estimate_work(node.target, *_arguments(node), tuple(iter_tensors(_as_tuple(node.meta.get("val")))))
        rates: Rates = self._rating(_device(node), work.dtype)
        seconds = max(0.0, work.seconds(rates) - rates.host.launch)
        return (seconds / 2 if _can_fuse(node) else seconds), work.scratch

    def _backward(self, number: dict[int, int]) -> tuple[tuple[Step, ...], tuple[int, ...]]:
        """Backward's steps, each with what it reads of the forward, and the bytes of backward's own that are alive in
        it."""
        order = [node for node in self._order if node.op == "call_function" and node not in self._forward]
        order = [node for node in order if not self._is_view(node) and node not in self.fused]
        own = [memory for memory in self._memories.values() if memory.maker not in self._forward]
        own = [memory for memory in own if memory.maker not in self.fused]
        place = {node: event for event, node in enumerate(order)}
        lasting = {id(one) for node in self._gradients for one in self._memories_of(node)}
        changes = [0] * (len(order) + 1)
        read_last: dict[int, int] = {}
        for node, event in place.items():
            for memory in self._read_by(node):
                read_last[id(memory)] = event
        for memory in own:
            born = place.get(memory.maker, 0)
            until = len(order) - 1 if id(memory) in lasting else read_last.get(id(memory), born)
            changes[born] += memory.nbytes
            changes[until + 1] -= memory.nbytes
        steps, other, alive = list[Step](), list[int](), 0
        for event, node in enumerate(order):
            alive += changes[event]
            scratch = self._cost(node)[1]
            reads = tuple(dict.fromkeys(number[id(one)] for one in self._read_by_backward(node, number)))
            steps.append(Step(reads, 0.0))
            other.append(alive + scratch)
        if not steps:
            return (Step((), 0.0),), (0,)
        return _joined(steps, other)

    def _read_by_backward(self, node: Node, number: dict[int, int]) -> list[_Memory]:
        """The forward's values that an operator of backward reads, with those that what is fused into it reads."""
        found: dict[int, _Memory] = {}
        waiting, seen = [node], {node}
        while waiting:
            for given in waiting.pop().all_input_nodes:
                for memory in self._memories_of(given):
                    if id(memory) in number:
                        found.setdefault(id(memory), memory)
                    elif memory.maker in self.fused and memory.maker not in seen:
                        seen.add(memory.maker)
                        waiting.append(memory.maker)
        return list(found.values())


def _joined(steps: Sequence[Step], other: Sequence[int]) -> tuple[tuple[Step, ...], tuple[int, ...]]:
    """Steps that read nothing become part of the step before."""
    joined, most = [steps[0]], [other[0]]
    for step, nbytes in zip(steps[1:], other[1:], strict=True):
        if step.reads:
            joined.append(step)
            most.append(nbytes)
        else:
            most[-1] = max(most[-1], nbytes)
    return tuple(joined), tuple(most)


def _reaching(nodes: Iterable[Node]) -> set[Node]:
    """The nodes that these depend on, and themselves."""
    found = set(nodes)
    waiting = list(found)
    while waiting:
        for given in waiting.pop().all_input_nodes:
            if given not in found:
                found.add(given)
                waiting.append(given)
    return found


def _storages(value: Any) -> list[tuple[int, int]]:
    """The storages of a node's results, with their bytes."""
    found = []
    for tensor in iter_tensors(_as_tuple(value)):
        if tensor.layout is torch.strided:
            storage = tensor.untyped_storage()
            found.append((storage._cdata, hint(storage.nbytes())))
    return found


def _ids(node: Node) -> set[int]:
    return {storage for storage, _ in _storages(node.meta.get("val"))}


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _arguments(node: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a node, with fake tensors for nodes."""

    def value(given: Node) -> Any:
        return given.meta.get("val")

    return torch.fx.map_arg(node.args, value), torch.fx.map_arg(node.kwargs, value)


def _device(node: Node) -> str:
    return next((tensor.device.type for tensor in iter_tensors(_as_tuple(node.meta.get("val")))), "cpu")


def _can_fuse(node: Node) -> bool:
    """Whether the compiler can compute a node in a kernel with others: no product, convolution or the like."""
    target = node.target
    if not isinstance(target, OpOverload) or target.namespace not in ("aten", "prims"):
        return False
    if target._schema.name.removeprefix("aten::") in _NOT_FUSED or torch.Tag.nondeterministic_seeded in target.tags:
        return False
    value = node.meta.get("val")
    return isinstance(value, Tensor) and (torch.Tag.pointwise in target.tags or _is_simple(target))


_SIMPLE = frozenset(
    [
        "sum",
        "mean",
        "amax",
        "amin",
        "var",
        "var_mean",
        "expand",
        "clone",
        "_to_copy",
        "where",
        "full",
        "scalar_tensor",
        "slice",
        "cat",
        "constant_pad_nd",
        "iota",
        "convert_element_type",
        "prod",
        "any",
        "all",
        "argmax",
        "argmin",
        "copy",
        "full_like",
    ]
)


def _is_simple(target: OpOverload) -> bool:
    return target._schema.name.partition("::")[2] in _SIMPLE


def _is_collective(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target.namespace in ("_c10d_functional", "c10d_functional")
