"""``JointStep``: the training step of a joint graph, in the terms that plans are searched in.

AOTAutograd traces forward and backward into one graph of aten operators. Its forward's operators and values become a
``Graph``, as those of an eager step do, with two differences. The compiler fuses pointwise operators and reductions
into the kernels that read them, so that such a value has no memory of its own while only they read it: it is part of
its readers. And what backward computes is known operator by operator, so that its memory follows from the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node, map_arg

from integrations._utils.torch_internals import OpOverload, tree_map
from integrations.capture.costs.operator_costs import Work, estimate_work
from integrations.capture.costs.rates import Rating
from integrations.capture.dispatch.decisions import Decides, decides
from integrations.capture.dispatch.operators import get_traits
from integrations.capture.graphs.graph import Graph, Op, Step, Value
from integrations.capture.graphs.signature import Signature
from integrations.policies.aten_attention import find_made
from integrations.policies.aten_nodes import find_connected
from integrations.runtime.compiled.graph_memory import GraphMemory, Memory, get_results
from integrations.runtime.compiled.realized import can_fuse
from integrations.runtime.compiled.sizes import largest

TANGENTS = "tangents"
"""The start of the names that AOTAutograd gives to the gradients of the forward's results."""

_CONVOLUTIONS = (torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default)


class JointStep:
    """The training step of a joint graph.

    Args:
        joint: the graph.
        forward_outputs: how many of its results are those of the forward.
        rating: the rates of operators.
        rounded: whether what backward reads may be rounded. Attention is computed again from query, key and value
            then, and backward reads nothing else of it; nothing is decided a second time; and what has to be exact
            is a value of its own.
        is_exact: whether a node makes what has to be exact.

    Attributes:
        graph: the step of a model that has no gradients yet.
        nodes: by value of ``graph``: the nodes whose results it is, with views of it.
        fused: nodes of the forward that are no values, and are computed in the operators that read them.
        read_through: by node of ``fused``: the values that it is computed from.
        attention_seconds: of the attention that backward computes again.
    """

    def __init__(
        self,
        joint: GraphModule,
        forward_outputs: int,
        rating: Rating,
        rounded: bool = False,
        is_exact: Callable[[Node], bool] = lambda node: False,
    ) -> None:
        self._rating, self._rounded, self._is_exact = rating, rounded, is_exact
        outputs = list(joint.graph.output_node().args[0])  # type: ignore[arg-type]
        results, gradients = (
            [one for one in part if isinstance(one, Node)] for part in _split(outputs, forward_outputs)
        )
        forward = self._forward = find_connected(results, lambda node: node.all_input_nodes)
        memory = self._memory = GraphMemory(
            joint.graph, lambda node: node.name.startswith(TANGENTS), lambda node: node in forward
        )
        self._returned = {one for node in results for one in memory.find_memories(node)}
        self._gradients = {one for node in gradients for one in memory.find_memories(node)}
        self._gradients = {one for one in self._gradients if one.maker not in forward}
        self._number: dict[Memory, int] = {}
        self.nodes: list[tuple[Node, ...]] = []
        self.graph = self._make_graph()
        self.fused = frozenset(node for node in memory.fused if node in forward and not self._is_value(node))
        self.read_through = {node: tuple(self._number[one] for one in self._read_by(node)) for node in self.fused}
        again = {given.args[0] for node in memory.order for given in self._made_again(node) if given.args}
        self.attention_seconds = sum(self._cost(node)[0] for node in again if isinstance(node, Node))

    def _is_value(self, node: Node) -> bool:
        return any(memory in self._number for memory in self._memory.made[node])

    def _make_graph(self) -> Graph:
        memory, forward = self._memory, self._forward
        direct = {
            one
            for node in memory.order
            if node.op == "call_function" and node not in forward
            for given in set(node.all_input_nodes) - set(self._made_again(node))
            for one in memory.find_memories(given)
            if one.maker in forward
        }
        direct.update(one for node in memory.fused if self._is_exact(node) for one in memory.made[node])
        # A fused node makes a value only if backward reads it.
        makers = [
            node
            for node in memory.order
            if node in forward
            and node.op == "call_function"
            and node in memory.made
            and (node not in memory.fused or memory.made[node][0] in direct)
        ]
        ops = [self._op(node) for node in makers]
        steps, other = self._backward(makers)
        place = {node: number for number, node in enumerate(makers)}
        read_last: dict[int, int] = {}
        for node, at in place.items():
            for one in memory.read_by(node):
                if one in self._number:
                    read_last[self._number[one]] = at
        saved = {value: len(ops) + event for event, step in enumerate(steps) for value in step.reads}
        last = len(ops) + len(steps) - 1
        backward = [node for node in memory.order if node.op == "call_function" and node not in forward]
        deciding = {
            self._number[one]
            for node in backward
            if decides_by(node)
            for one in memory.read_by(node, self._is_read_through)
            if one in self._number
        }
        values = []
        for one, number in self._number.items():
            until = last if one in self._returned else read_last.get(number, place[one.maker])
            hidden = one.maker in memory.fused
            exact = any(map(self._is_exact, one.nodes)) or number in deciding
            end = saved.get(number, -1)
            values.append(Value(one.nbytes, place[one.maker], -1, -1 if hidden else until, end, exact))
        graph = Graph(
            ops=tuple(ops),
            values=tuple(values),
            steps=steps,
            other=other,
            outputs=tuple(sorted(self._number[one] for one in self._returned if one in self._number)),
            gradients=sum(one.nbytes for one in self._gradients),
            fingerprint="",
            inputs=Signature.of((), {}),
            standing=(0,) * (len(ops) + len(steps)),
        )
        return graph.as_rounded if self._rounded else graph

    def _op(self, node: Node) -> Op:
        """The operator of a node; its results become values."""
        reads = tuple(self._number[one] for one in self._read_by(node))
        makes = []
        for memory in self._memory.made[node]:
            self._number[memory] = len(self.nodes)
            makes.append(len(self.nodes))
            self.nodes.append(tuple(one for one in memory.nodes if one in self._forward))
        seconds, scratch = self._cost(node)
        return Op(
            name=str(node.target),
            module="",
            reads=reads,
            makes=tuple(makes),
            seconds=seconds,
            repeatable=_is_repeatable(node.target),
            packs=(),
            shapes=(),
            scratch=scratch,
            decides=any(map(decides_by, self._nodes_in(node))),
        )

    def _nodes_in(self, node: Node) -> list[Node]:
        """The node of an operator, with those that are fused into it."""
        found, waiting = [node], [node]
        while waiting:
            for given in waiting.pop().all_input_nodes:
                memories = self._memory.find_memories(given)
                if given not in found and memories and all(map(self._is_read_through, memories)):
                    found.append(given)
                    waiting.append(given)
        return found

    def _read_by(self, node: Node) -> list[Memory]:
        """The values that an operator reads, with those that what is fused into it reads."""
        found = self._memory.read_by(node, self._is_read_through, self._made_again(node))
        return [one for one in found if one in self._number]

    def _is_read_through(self, memory: Memory) -> bool:
        return memory not in self._number and memory.maker in self._memory.fused

    def _made_again(self, node: Node) -> tuple[Node, ...]:
        """What backward computes again where it reads it."""
        return find_made(node) if self._rounded else ()

    def _cost(self, node: Node) -> tuple[float, int]:
        """The seconds of an operator that backward repeats, and its workspace. A fused one takes no launch, and the
        kernel around it reads or writes a part of its memory anyway."""
        work = _estimate(node)
        if work is None:
            return 0.0, 0
        rates = self._rating(get_results(node)[0].device.type, work.dtype)
        seconds = max(0.0, work.seconds(rates) - rates.host.launch)
        return (seconds / 2 if can_fuse(node) else seconds), work.scratch

    def _backward(self, makers: Sequence[Node]) -> tuple[tuple[Step, ...], tuple[int, ...]]:
        """Backward's steps with what they read, and by event the bytes that are alive of what is no value.

        Args:
            makers: the forward's operators.
        """
        kernels = [node for node in self._memory.kernels() if node not in self._forward]
        own = [one for one in self._memory.memories.values() if one.maker not in self._forward]
        alive = self._memory.alive((*makers, *kernels), own, self._gradients)
        other = alive[: len(makers)]
        tangents = sum(one.nbytes for one in own if one.maker.op == "placeholder")
        other = [nbytes - tangents for nbytes in other]  # they come with backward
        steps = [Step((), 0.0)]
        other.append(0)
        for node, nbytes in zip(kernels, alive[len(makers) :], strict=True):
            reads = tuple(self._number[one] for one in self._read_by(node))
            nbytes += self._cost(node)[1]
            nbytes += sum(one.nbytes for made in self._made_again(node) for one in self._memory.find_memories(made))
            if reads:
                steps.append(Step(reads, 0.0))
                other.append(nbytes)
            else:  # part of the step before
                other[-1] = max(other[-1], nbytes)
        return tuple(steps), tuple(other)


def decides_by(node: Node) -> bool:
    """Whether an operator is discontinuous, like a comparison: rounded arguments may give a wholly different result."""
    if not isinstance(node.target, OpOverload):
        return False
    args = map_arg(node.args, lambda given: given.meta.get("val"))
    return decides(node.target, args, get_results(node)) is not Decides.NOTHING


def count_workspace(node: Node) -> int:
    """The bytes that a node's kernel takes only while it runs, as far as arithmetic tells."""
    work = _estimate(node)
    return 0 if work is None else work.scratch


def _estimate(node: Node) -> Work | None:
    """The work of a node; ``None`` where it is no operator of torch, or returns no tensor."""
    lay_out = _with_channels_last if node.target in _CONVOLUTIONS else _with_fixed_sizes
    results = tuple(map(lay_out, get_results(node)))
    if not isinstance(node.target, OpOverload) or not results:
        return None

    def value(given: Node) -> Any:
        return tree_map(lay_out, given.meta.get("val"))

    return estimate_work(node.target, map_arg(node.args, value), map_arg(node.kwargs, value), results)


def _with_fixed_sizes(value: Any) -> Any:
    """A value of a graph with fixed sizes where they vary, the largest: to compute with those would fix them."""
    if isinstance(value, torch.SymInt):
        return largest(value)
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return value
    sizes, strides = value.shape, value.stride()
    if all(type(size) is int for size in (*sizes, *strides)):
        return value
    return value.new_empty_strided(tuple(map(largest, sizes)), tuple(map(largest, strides)))


def _with_channels_last(value: Any) -> Any:
    """The same for a convolution: on a CPU, inductor lays images and weights out with channels last."""
    value = _with_fixed_sizes(value)
    if not isinstance(value, Tensor) or value.dim() != 4 or value.device.type != "cpu":
        return value
    return value.contiguous(memory_format=torch.channels_last)


def _split(outputs: list[Any], count: int) -> tuple[list[Any], list[Any]]:
    return outputs[:count], outputs[count:]


def _is_repeatable(target: Any) -> bool:
    if not isinstance(target, OpOverload) or target.namespace in ("_c10d_functional", "c10d_functional"):
        return False
    traits = get_traits(target)
    return traits.known and not traits.random and not traits.writes
