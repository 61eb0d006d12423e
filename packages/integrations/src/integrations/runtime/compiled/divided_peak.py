"""``count_peak``: the bytes that a compiled step takes, counted on its forward and its backward graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from torch.fx import GraphModule, Node

from actcore import GroupAffine
from integrations.planner.plan import Plan
from integrations.runtime.compiled.graph_memory import GraphMemory, Memory, Waiting
from integrations.runtime.compiled.joint_step import TANGENTS, count_workspace
from integrations.runtime.compiled.sizes import largest, largest_bytes
from integrations.runtime.compiled.stored import Stored


class StepBytes(NamedTuple):
    """The bytes of a compiled step.

    Attributes:
        peak: the activation peak.
        held: what is alive between forward and backward.
    """

    peak: int
    held: int


def count_peak(
    forward: GraphModule, backward: GraphModule, forward_outputs: int, plan: Plan, stored: Iterable[Stored] = ()
) -> StepBytes:
    """Counts the bytes of a compiled step.

    Args:
        forward, backward: its graphs.
        forward_outputs: how many of the forward's results are the model's.
        plan: the plan of the eager step, for the state of its gradients.
        stored: the tensors that the forward saves for backward, with their stored forms; others are kept unchanged.
    """
    outputs = list(forward.graph.output_node().args[0])  # type: ignore[arg-type]
    ahead = GraphMemory(forward.graph, lambda node: False, lambda node: True, joins_sums=True)
    forms = [one for one in stored if not one.form.exact]
    returned = {
        one for node in outputs[:forward_outputs] if isinstance(node, Node) for one in ahead.find_memories(node)
    }
    waiting = _find_waiting(ahead, {one.node: one for one in forms})
    made = ahead.kernels()
    most_ahead = _count_most(ahead, made, ahead.lasting - (waiting.keys() - returned), waiting)
    held = sum(one.nbytes for one in returned)
    saved = {node.name for node in outputs[forward_outputs:] if isinstance(node, Node) and ahead.find_memories(node)}
    shared = {node.name for node in outputs if isinstance(node, Node) and returned & {*ahead.find_memories(node)}}
    shared.difference_update(one.node.name for one in forms)  # which are restored beside what is returned
    behind = GraphMemory(
        backward.graph,
        lambda node: node.name.startswith(TANGENTS) or (node.name in saved and node.name not in shared),
        lambda node: True,
        joins_sums=True,
    )
    inputs = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    restored = _find_waiting(behind, {inputs[one.node.name]: one for one in forms if one.node.name in inputs})
    kernels = behind.kernels()
    most_behind = _count_most(behind, kernels, behind.lasting, restored, is_backward=True)
    gradients = sum(one.nbytes for one in behind.lasting if one.maker.op == "call_function")
    standing = gradients if plan.graph.clears else 0
    most = max(most_ahead + standing, held + most_behind)
    between = sum(one.nbytes for one in ahead.lasting if one not in waiting or one in returned)
    between += sum(one.nbytes for one in waiting.values()) + behind.count_copies()
    return StepBytes(most - (0 if plan.graph.accumulates else gradients), between)


def _count_most(
    graph: GraphMemory,
    kernels: Sequence[Node],
    lasting: Iterable[Memory],
    waiting: Mapping[Memory, Waiting],
    is_backward: bool = False,
) -> int:
    """Return the most bytes that are alive while a kernel of a graph runs, workspaces included.

    Which kernels inductor fuses is not known yet. The graph is counted with everything fused that may be, and with
    nothing fused but each input alive until all kernels of its group have run. The larger number is returned.

    Neither is a proven bound. On a CPU, exact plans of ``"least"`` were measured for 27 models, each one graph: peaks
    were 0.58 (a perceptron) to 1.03 (XCiT) of this count, with allocations rounded up to 64 bytes.
    """
    memories, groups = graph.memories.values(), graph.find_groups(kernels)

    def count(is_fused: bool) -> int:
        alive = graph.alive(kernels, memories, lasting, waiting, is_backward, groups, is_fused)
        return max((nbytes + count_workspace(node) for node, nbytes in zip(kernels, alive, strict=True)), default=0)

    return max(count(is_fused=False), count(is_fused=True))


def _find_waiting(graph: GraphMemory, forms: dict[Node, Stored]) -> dict[Memory, Waiting]:
    """The memory of a graph that waits in other forms, by the nodes that are stored."""
    found: dict[Memory, Waiting] = {}
    for node, one in forms.items():
        numel, nbytes = largest(node.meta["val"].numel()), largest_bytes(node.meta["val"])
        form = one.form
        beside = 0 if form.bounds is None else nbytes
        if form.sign and isinstance(form.codec, GroupAffine):  # where the signs are put back
            beside += 2 * nbytes
        elements = form.codec is not None or form.sign
        for memory in graph.find_memories(node):
            before = found.get(memory, Waiting(0, 0, 0))
            found[memory] = Waiting(
                before.nbytes + form.nbytes(numel, one.saved.dtype),
                max(before.beside, beside),
                before.restored + (nbytes if elements else 0),
            )
    return found
