"""What a compiled region's backward does with a tensor that its forward saves, read off the backward graph.

A compiled region has no torch calls to look at: its forward and backward are two graphs of aten operators, and the
partitioner chose what goes from one to the other. A use here is an operator of ``rules`` and the tensor's role in it,
so that the same table decides as for eager code. A tensor with a use that is not recognised is kept exactly.

Backward may recompute parts of the forward from what is saved. Then what a recomputed value is used for decides, with
the bits of a product at least. Where it decides between two sides, as a ReLU's mask does, rounding may move an element
to the other side, so the tensor is kept exactly. Where a plan has parts repeated from rounded values on purpose, more
operators are recognised: products, convolutions and the normalisations of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from torch.fx import Graph, Node

from integrations.policies.aten_attention import QUERY_KEY_VALUE, is_attention, is_recomputed
from integrations.policies.aten_nodes import (
    covers,
    find_connected,
    find_origin,
    get_shape,
    has_same_numbers,
    hint,
    is_bool,
    name_of,
    number,
)
from integrations.policies.operators import OPERATORS, Effect
from integrations.policies.operators.products import ATTENTION, LINEAR
from integrations.policies.rules import RULES, Need
from integrations.policies.standardizing import CHANNELS


@dataclass(frozen=True, order=True)
class Use:
    """One use of a saved tensor.

    Attributes:
        operator, role: as in ``rules.RULES``; what an operator without a rule saves is kept exactly.
        name: the aten operator in the backward graph.
        statistics: what a normalisation takes its statistics over, as ``norms.Statistics`` has it: the sizes of its
            input, then the number of groups; empty for any other operator.
    """

    operator: str
    role: str
    name: str
    statistics: tuple[int, ...] = ()


class _Dependence(Enum):
    """How a node of the backward graph depends on the saved tensor."""

    ITSELF = "the tensor, or a view, copy or cast of it"
    POSITIVE = "its positive part, which is positive where it is"
    RECOMPUTED = "a value recomputed from it"


def _with_effect(effect: Effect) -> frozenset[str]:
    return frozenset(one.name for entry in OPERATORS if entry.effect is effect for one in entry.aten)


_SAME = _with_effect(Effect.SAME) | {"getitem"}  # one of several results
_SCALES = _with_effect(Effect.SCALES)
_SUMS = _with_effect(Effect.SUMS) | {"neg"}
# Positions of the operands in which the result is linear, the other operand being a gradient.
_PRODUCTS = MappingProxyType(
    {one.name: one.factors for entry in OPERATORS if entry.rule is LINEAR for one in entry.kernels if one.factors}
)
# Positions of value and result, in which backward is linear.
_ATTENTIONS = MappingProxyType(
    {one.name: one.factors for entry in OPERATORS if entry.rule is ATTENTION for one in entry.backward}
)
# By backward operator: the position of the tensor, and the forward operator and role that its rule has.
_BACKWARDS = MappingProxyType(
    {
        one.name: (one.saved, entry.names[0], one.role)
        for entry in OPERATORS
        for one in entry.backward
        if one.saved is not None
    }
)
# A backend may decompose these into arithmetic. Whichever step reads the tensor, the rule speaks of the derivative as a
# whole.
_DECOMPOSED = frozenset(
    name
    for name, (_, operator, role) in _BACKWARDS.items()
    if RULES[operator].need(role) in (Need.SATURATING, Need.BOUNDED)
)
_STEADY = frozenset(one.name for entry in OPERATORS for one in entry.aten if one.steady)
_BATCH_NORMS = frozenset(one.name for entry in OPERATORS if "batch_norm" in entry.names for one in entry.kernels)
_ROW_NORMS = frozenset(one.name for entry in OPERATORS if entry.by_row for one in entry.kernels)
NORM_BACKWARDS = frozenset(one.name for entry in OPERATORS if entry.by_row for one in entry.backward)
"""Backward operators of normalizations of rows."""
_ROW_STATISTICS = frozenset((3, 4))  # positions in the backward operators of row norms
# Positions of the operands in which a repeated operator is linear.
_REPEATED = MappingProxyType({one.name: one.repeated for entry in OPERATORS for one in entry.aten if one.repeated})
_TOO_MANY = 256  # steps that are followed
_FEW = 16  # steps between a softmax and a product
_PASSING = _SAME | _SCALES


class BackwardUses:
    """The uses of the tensors that a region's forward graph hands to its backward graph."""

    def __init__(self, forward: Graph, backward: Graph) -> None:
        made = {node.name for node in forward.nodes}
        inputs = backward.find_nodes(op="placeholder")
        self._inputs: dict[str, Node] = {node.name: node for node in inputs}
        tangents = [node for node in inputs if "tangents" in node.name and node.name not in made]
        self._gradients = find_connected(tangents, lambda node: node.users)

    def uses_of(
        self, saved: Node, planned: bool = False, may_repeat: Callable[[Node], bool] | None = None
    ) -> frozenset[Use]:
        """The uses of a node of the forward graph. It has the same name in the backward graph.

        Args:
            saved: the node.
            planned: whether a plan stores it in bits, and has weighed what is recomputed from it.
            may_repeat: whether an operator of backward may read rounded values, because the plan has measured their
                effect on the gradient. ``None``: only the operators that this module knows may.
        """
        start = self._inputs.get(saved.name)
        if start is None:
            return frozenset((_unknown("a backward that does not name it"),))
        found: set[Use] = set()
        todo, seen = [(start, _Dependence.ITSELF)], {(start, _Dependence.ITSELF)}
        while todo:
            node, value = todo.pop()
            for user in node.users:
                steps = list(_follow(start, node, value, user, self._gradients, planned))
                if may_repeat is not None and any(map(_is_unknown, steps)) and may_repeat(user):
                    if user not in self._gradients:
                        steps = [_Dependence.RECOMPUTED]
                    elif value is _Dependence.RECOMPUTED:
                        steps = [_product(name_of(user.target))]
                found.update(step for step in steps if isinstance(step, Use))
                for step in steps:
                    if isinstance(step, _Dependence) and (user, step) not in seen:
                        seen.add((user, step))
                        todo.append((user, step))
            if len(seen) > _TOO_MANY and may_repeat is None:
                found.add(_unknown("a long computation"))
                break
        return frozenset(found)


def find_copies(nodes: set[Node], graph: Graph) -> set[Node]:
    """Return these nodes and all views, copies and casts of them in a graph."""
    found = set(nodes)
    for node in graph.nodes:
        given = node.all_input_nodes if node.op == "call_function" and name_of(node.target) in _SAME else ()
        if given and found.issuperset(given):
            found.add(node)
    return found


def count_norm_features(node: Node) -> int:
    """Return the features of each row if the node is the result of a normalization of rows, or a view, copy or cast of
    it; 0 for any other node."""
    shape = get_shape(node)
    while name_of(node.target) in _SAME and node.all_input_nodes:
        node = node.all_input_nodes[0]
        shape = get_shape(node) or shape  # an operator with several results has none
    return hint(shape[-1]) if shape and find_origin(node) in _ROW_NORMS else 0


def _follow(
    start: Node, node: Node, value: _Dependence, user: Node, gradients: set[Node], planned: bool
) -> Iterator[Use | _Dependence]:
    """The uses in ``user`` of what ``node`` holds, or how the result of ``user`` depends on the saved tensor."""
    name, origin = name_of(user.target), find_origin(user)
    positions = tuple(index for index, argument in enumerate(user.args) if argument is node)
    if user.op != "call_function" or not positions or node in user.kwargs.values():
        yield _unknown(name or "its result")
    elif user in gradients:
        yield from _in_gradient(node, value, user, name, positions, planned)
    elif name in _SAME and positions == (0,):
        yield value if has_same_numbers(user) else _unknown(name)
    elif origin in _DECOMPOSED:
        _, operator, role = _BACKWARDS[origin]
        yield Use(operator, role, origin)
        if value is not _Dependence.ITSELF:
            yield _product(origin)
    elif (
        name in ("le", "gt") and positions == (0,) and number(user.args[1]) == 0 and value is not _Dependence.RECOMPUTED
    ):
        yield Use("relu", "result", name)
    elif name == "relu":
        yield _Dependence.RECOMPUTED if value is _Dependence.RECOMPUTED else _Dependence.POSITIVE
    elif name == "pow" and positions == (0,) and number(user.args[1]) == 1:
        yield value
    elif name in ("le", "lt", "gt", "ge", "eq", "ne"):
        yield _unknown(f"{name} of a recomputed tensor")
    elif (is_attention(name) and set(positions) <= {0, 1, 2}) or (
        planned and len(positions) == 1 and positions[0] in _REPEATED.get(name, ())
    ):
        yield _Dependence.RECOMPUTED
    elif not covers(node, user):
        yield _unknown(name)
    elif origin in _STEADY:
        yield _Dependence.RECOMPUTED
    else:
        yield from _in_arithmetic(start, node, user, name, origin)


def _in_gradient(
    node: Node, value: _Dependence, user: Node, name: str, positions: tuple[int, ...], planned: bool
) -> Iterator[Use | _Dependence]:
    """The uses in an operator that also reads a gradient."""
    if is_recomputed(user):
        yield from _in_attention(value, name, positions)
    elif set(positions) <= set(_PRODUCTS.get(name, ())):
        if name in ("bmm", "baddbmm") and _is_of_attention(user):
            yield Use("scaled_dot_product_attention", "recomputed", name)
        elif value is _Dependence.ITSELF:
            yield Use("linear", "input", name)
        if value is not _Dependence.ITSELF:
            yield _product(name)
    elif _is_factor(node, user, name, set(positions)) or (
        planned and name in _ROW_NORMS and value is _Dependence.RECOMPUTED and set(positions) <= _ROW_STATISTICS
    ):
        origin = find_origin(user)
        yield _product(origin if origin in NORM_BACKWARDS else name)
    elif name in _BACKWARDS and positions == (_BACKWARDS[name][0],) and _holds(name, value, user, planned):
        _, operator, role = _BACKWARDS[name]
        yield Use(operator, role, name, _statistics(name, node, user))
        if value is not _Dependence.ITSELF:
            yield _product(name)
    else:
        yield _unknown(name)


def _is_of_attention(product: Node) -> bool:
    """Return whether a product with a gradient belongs to an attention that torch has taken apart: one operand is the
    gradient of a softmax's input, which is multiplied with query or key, or the result is that of its output, as it is
    of value. A rounded factor moves every gradient below, as in torch's own attention."""
    return any(_leads(node, lambda one: one.all_input_nodes[:1]) for node in product.all_input_nodes) or any(
        _leads(node, lambda one: list(one.users)) for node in product.users
    )


def _leads(node: Node, following: Callable[[Node], list[Node]]) -> bool:
    """Return whether views and scaled copies lead from a node to the backward of a softmax."""
    for _ in range(_FEW):
        if find_origin(node) == "_softmax_backward_data":
            return True
        after = following(node)
        if node.op != "call_function" or name_of(node.target) not in _PASSING or len(after) != 1:
            return False
        node = after[0]
    return False


def _in_attention(value: _Dependence, name: str, positions: tuple[int, ...]) -> Iterator[Use]:
    """The uses in an attention whose result and sums, its next arguments, are recomputed."""
    for position in positions:
        if position in QUERY_KEY_VALUE:
            yield Use("scaled_dot_product_attention", "recomputed", name)
            if value is not _Dependence.ITSELF:
                yield _product(name)
        elif value is not _Dependence.RECOMPUTED:
            yield _unknown(name)


def _statistics(name: str, node: Node, user: Node) -> tuple[int, ...]:
    """The sizes and groups of a normalisation's statistics, as its backward operator knows them; empty for one by
    running statistics."""
    if name == "native_group_norm_backward":
        return (*map(hint, get_shape(node)), hint(user.args[8]))
    if name == "cudnn_batch_norm_backward" or (name == "native_batch_norm_backward" and user.args[7] is True):
        return (*map(hint, get_shape(node)), CHANNELS)
    return ()


def _is_factor(node: Node, user: Node, name: str, positions: set[int]) -> bool:
    """Whether the node is one factor of a product whose other factor depends on the gradient."""
    if name in _ATTENTIONS:
        return positions <= set(_ATTENTIONS[name])
    return name in ("mul", "fma") and positions <= {0, 1} and covers(node, user)


def _holds(name: str, value: _Dependence, user: Node, planned: bool) -> bool:
    """Whether a backward operator's rule holds for its arguments."""
    if name == "threshold_backward":
        return number(user.args[2]) == 0 and value is not _Dependence.RECOMPUTED
    if name == "leaky_relu_backward":
        return value is not _Dependence.RECOMPUTED
    again = planned and name in _ROW_NORMS
    return value is _Dependence.ITSELF or again or not name.endswith("_norm_backward")


def _in_arithmetic(start: Node, node: Node, user: Node, name: str, origin: str) -> Iterator[Use | _Dependence]:
    """The uses in a step of the forward that backward recomputes."""
    others = [argument for argument in user.args if isinstance(argument, Node) and argument is not node]
    numbers = [argument for argument in user.args if number(argument) is not None]
    # Without a number it is a square, which moves by more than a bounded multiple of what the tensor does.
    scaled = bool(numbers) and (name == "mul" or (name == "div" and user.args[0] is node))
    if name in _SUMS or scaled:
        yield _Dependence.RECOMPUTED
    elif name == "mul" and origin in _BATCH_NORMS:
        yield Use("batch_norm", "input", origin, (*map(hint, get_shape(user)), CHANNELS))
        yield _Dependence.RECOMPUTED
    elif name == "mul" and origin in _ROW_NORMS and get_shape(start)[-1:] == get_shape(user)[-1:]:
        yield Use("layer_norm", "input", origin)
        yield _Dependence.RECOMPUTED
    elif name == "mul" and others and all(is_bool(other) for other in others):  # dropout
        yield _Dependence.RECOMPUTED
    else:
        yield _unknown(name)


def _product(name: str) -> Use:
    return Use("mul", "input", name)


def _is_unknown(step: Use | _Dependence) -> bool:
    return isinstance(step, Use) and not step.operator


def _unknown(name: str) -> Use:
    return Use("", "", name)
