"""``find_realized``: which of the values that inductor could compute in the kernels that read them it stores.

Inductor calls this realizing. While it lowers a graph, it decides by how many operators read a value and how many
tensors the value is computed from, whatever memory that takes: a sigmoid that two operators read is stored, and so is
the result of a batch norm, which is computed from five tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from integrations._utils.torch_internals import OpOverload, inductor_config
from integrations.capture.dispatch.operators import get_traits
from integrations.policies.aten_nodes import get_operator, get_shape
from integrations.policies.operators import OPERATORS, Kernel

_EXTERN = (Kernel.PRODUCT, Kernel.CONVOLUTION, Kernel.CONVOLUTION_BACKWARD, Kernel.ATTENTION, Kernel.CHUNKED)
_NOT_FUSED = frozenset(one.name for entry in OPERATORS for one in entry.kernels if one.kernel in _EXTERN)
REDUCTIONS = frozenset(("sum", "mean", "amax", "amin", "var", "var_mean", "prod", "any", "all", "argmax", "argmin"))
# Besides those that torch tags as pointwise.
_FUSED = REDUCTIONS | {
    *("expand", "clone", "_to_copy", "convert_element_type", "copy", "slice", "constant_pad_nd"),
    *("slice_scatter", "select_scatter"),
    *("full", "full_like", "scalar_tensor", "iota", "where"),
}
GATHERS = frozenset(("index", "_unsafe_index", "_unsafe_masked_index", "gather", "embedding"))
_PUTS = frozenset(("index_put", "_unsafe_index_put", "_unsafe_masked_index_put_accumulate"))
SCATTERS = _PUTS | {"scatter", "scatter_add", "scatter_reduce"}
_MASKED = ("_unsafe_masked_index", "_unsafe_masked_index_put_accumulate")  # whose second argument is a mask
_MASKS = frozenset((torch.bool, torch.uint8))  # of indices with them, inductor calls torch's kernel
_HEAVY = frozenset(("exp", "log", "log10", "log1p", "log2", "sigmoid", "tanh"))
_ADD, _CAT, _PRODUCT = torch.ops.aten.add.Tensor, torch.ops.aten.cat.default, torch.ops.aten.mm.default

# Inductor's settings, each for a CPU and elsewhere, and their defaults. A value that is read more than once is stored
# if it is computed from more tensors than the first, or by more operations than the second; any value, if it is
# computed from more tensors than the third.
_READS = ("realize_reads_threshold", 4), ("realize_reads_threshold", 4)
_OPERATIONS = ("realize_cpu_opcount_threshold", 50), ("realize_opcount_threshold", 30)
_MOST_READS = ("realize_cpu_acc_reads_threshold", 12), ("realize_acc_reads_threshold", 8)


@dataclass(eq=False)
class _Value:
    """What inductor computes.

    Attributes:
        maker: the node that computes it.
        reads: the nodes whose memory it is computed from; itself, once it is stored.
        is_heavy: whether it is computed with operators that are slow on a CPU.
        operations: how many operators compute it, with one more for each stored value that they read.
    """

    maker: Node
    reads: frozenset[Node]
    is_heavy: bool = False
    operations: int = 1


def can_fuse(node: Node) -> bool:
    """Whether the compiler can compute a node in a kernel with others: it is no product, convolution or the like."""
    target = node.target
    if not isinstance(target, OpOverload) or target.namespace not in ("aten", "prims"):
        return False
    name = get_operator(node)
    if name in _NOT_FUSED or torch.Tag.nondeterministic_seeded in target.tags:
        return False
    if not isinstance(node.meta.get("val"), Tensor):
        return False
    return torch.Tag.pointwise in target.tags or name in _FUSED or (name in GATHERS and _has_places(node))


def computes_argument(node: Node, given: Node) -> bool:
    """Whether the compiler can compute a value where a node copies it: into the result of ``cat``, or into a copy that
    is written into, as the gradient of an embedding is added to zeros. What is written may be computed there, too."""
    target = node.target
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return False
    if target is _CAT:
        return get_operator(given) not in REDUCTIONS
    if get_operator(node) not in SCATTERS:
        return False
    is_copied = node.args[0] is given and given not in _nodes_in(node.args[1:])
    return is_copied or _is_own_kernel(node)


def _is_own_kernel(node: Node) -> bool:
    """Whether inductor makes a kernel of its own for an operator that writes at indices. Elsewhere it calls torch's,
    which reads all from memory: for masks, in several threads of a CPU, and where sums are to be reproducible."""
    value, name = node.meta.get("val"), get_operator(node)
    if not isinstance(value, Tensor) or value.dtype != torch.float32 or torch.are_deterministic_algorithms_enabled():
        return False
    if name in _PUTS:
        return _has_places(node)
    if name != "scatter_add":
        return name == "scatter" and not node.kwargs
    settings = getattr(inductor_config(), "cpp", None)
    threads = max(getattr(settings, "threads", -1), 0) or torch.get_num_threads()
    return value.device.type != "cpu" or (threads == 1 and not getattr(settings, "dynamic_threads", False))


def _has_places(node: Node) -> bool:
    """Whether the indices of an operator are integers on the device of its result."""
    place = 2 if get_operator(node) in ("gather", *_MASKED) else 1
    given = [one.meta.get("val") for one in _nodes_in(node.args[place : place + 1])]
    device = node.meta["val"].device
    return all(isinstance(one, Tensor) and one.dtype not in _MASKS and one.device == device for one in given)


def find_realized(
    nodes: Iterable[Node], part: Callable[[Node], object], sums: Mapping[Node, Node] = MappingProxyType({})
) -> frozenset[Node]:
    """The nodes of a graph whose results are stored, though each could be computed in the kernels that read it.

    Args:
        nodes: of the graph, in order.
        part: which of several parts a node belongs to; what one part makes is not computed in another.
        sums: as of ``find_sums``, whose nodes are kernels of their own.
    """
    values: dict[Node, _Value] = {}
    found, totals = set[Node](), {*sums.values()}

    def realize(value: _Value) -> None:
        value.reads, value.is_heavy, value.operations = frozenset((value.maker,)), False, 1
        if value.maker.op == "call_function":
            found.add(value.maker)

    for node in nodes:
        given = [values[one] for one in node.all_input_nodes if one in values]
        if given and _is_view(node):
            value = given[0]
        else:
            value = _Value(node, frozenset((node,)))
            here = [one for one in given if part(one.maker) == part(node)]
            if not can_fuse(node) or node in totals:
                for one in here:
                    if not computes_argument(node, one.maker):
                        realize(one)
            else:
                others = {one.maker for one in given} - {one.maker for one in here}
                value.reads = frozenset(others).union(*(one.reads for one in here))
                name = get_operator(node)
                value.is_heavy = name in _HEAVY or any(one.is_heavy for one in here)
                value.operations = 1 + len(given) - len(here) + sum(one.operations for one in here)
            if node in totals or (can_fuse(node) and get_operator(node) in REDUCTIONS):
                realize(value)
        values[node] = value
        reused = sum(part(user) == part(node) for user in node.users) > 1
        if _is_realized(node, value, reused):
            realize(value)
    return frozenset(found)


def _is_realized(node: Node, value: _Value, is_reused: bool) -> bool:
    """Whether inductor stores a value that it could compute anew in each kernel that reads it."""
    tensor = node.meta.get("val")
    if not isinstance(tensor, Tensor):
        return False
    is_cpu = tensor.device.type == "cpu"
    if is_reused and ((is_cpu and value.is_heavy) or len(value.reads) > _get_setting(_READS, is_cpu)):
        return True
    if is_reused and value.operations > _get_setting(_OPERATIONS, is_cpu):
        return True
    return len(value.reads) > _get_setting(_MOST_READS, is_cpu)


def _get_setting(names: tuple[tuple[str, int], tuple[str, int]], is_cpu: bool) -> int:
    name, default = names[0 if is_cpu else 1]
    found = getattr(inductor_config(), name, None)
    return default if found is None else int(found)


def find_sums(nodes: Iterable[Node]) -> dict[Node, Node]:
    """The products of matrices to which inductor adds another matrix at once, in a kernel where the sum was, each with
    its sum."""
    found: dict[Node, Node] = {}
    for node in nodes:
        if node.target is not _ADD or node.kwargs:
            continue
        one, other = node.args
        for product, addend in ((one, other), (other, one)):
            if isinstance(product, Node) and isinstance(addend, Node) and _is_added(product, addend, node):
                found[product] = node
                break
    return found


def _is_added(product: Node, addend: Node, total: Node) -> bool:
    if product.target is not _PRODUCT or len(product.users) > 1 or get_shape(product) != get_shape(total):
        return False
    made, added = product.meta.get("val"), addend.meta.get("val")
    if not isinstance(added, Tensor) or not isinstance(made, Tensor) or added.dtype != made.dtype:
        return False
    return made.device.type == "cpu" or added.shape == made.shape


def _nodes_in(args: Any) -> list[Node]:
    """The nodes among arguments, and in the lists among these."""
    found = (one for given in args for one in (given if isinstance(given, list | tuple) else (given,)))
    return [one for one in found if isinstance(one, Node)]


def _is_view(node: Node) -> bool:
    """Whether a node returns a view of its argument."""
    return isinstance(node.target, OpOverload) and get_traits(node.target).view
