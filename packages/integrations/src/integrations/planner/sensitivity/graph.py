"""The autograd graph of one forward, as numbers: which node passes gradients on to which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from integrations._utils.torch_internals import get_sequence_nr
from integrations.tracing.tensors import MOST_NODES, find_node

PARAMETER = -1  # the gradient ends in a parameter
NOWHERE = -2  # it ends in something else, or in something from before the forward

# Nodes whose result has the elements of their gradient, in another order, shape or dtype.
_MOVES = frozenset(
    f"{name}Backward{number}"
    for name in ("T", "Transpose", "Permute", "View", "UnsafeView", "Unsqueeze", "Squeeze", "ToCopy")
    for number in (0, 1)
)

# Libraries whose Functions only compute, so that their backward may be run once more.
_PURE = ("actcore", "integrations")


class AutogradGraph:
    """Nodes in the order in which they were found, up to a maximum.

    Attributes:
        repeatable: by node: whether its backward may run once more.
        edges: by node, for each result of its backward: which node takes it (or ``PARAMETER``, or ``NOWHERE``), and as
            which of that node's gradients.
    """

    def __init__(self) -> None:
        self.repeatable: list[bool] = []
        self.edges: list[list[tuple[int, int]]] = []
        # The wrapper of a living node is unique, so identity finds the node.
        self._index: dict[Node, int] = {}
        self._start = get_sequence_nr()  # nodes are numbered as they are made

    @property
    def full(self) -> bool:
        """Whether no more nodes are added."""
        return len(self.repeatable) >= MOST_NODES

    def add(self, tensors: Iterable[Tensor], ours: bool) -> list[tuple[int, Node]]:
        """Adds the nodes that computed these tensors and are not known yet, and returns them with their places.

        Args:
            tensors: results of a call, or what it may have changed in place.
            ours: whether what its nodes saved went through our hooks; another library's hooks may refuse to unpack
                twice.
        """
        found = []
        waiting = [node for tensor in tensors if (node := find_node(tensor)) is not None]
        while waiting and not self.full:
            node = waiting.pop()
            if node in self._index or hasattr(node, "variable") or node._sequence_nr() < self._start:
                continue
            self._index[node] = len(self.repeatable)
            found.append((len(self.repeatable), node))
            self.repeatable.append(ours and _pure(node))
            waiting += [following for following, _ in node.next_functions if following is not None]
        return found

    def close(self) -> None:
        """Notes the edges. From now on nodes are known by their places, so that this graph keeps none alive."""
        arrivals = Counter(following for node in self._index for following, _ in node.next_functions)
        ways = {node for node in self._index if arrivals[node] == 1 and self._is_way_to_parameter(node, arrivals)}
        self.edges = [
            # What comes to a parameter by a way of its own is counted where it sets out, and not on the way.
            [(NOWHERE if node in ways else self._place(following, ways), at) for following, at in node.next_functions]
            for node in self._index
        ]
        self._index = {}

    def _is_way_to_parameter(self, node: Node, arrivals: Counter[Node | None]) -> bool:
        """Whether a node only moves the elements of one parameter, such as ``weight.t()``. An error's energy passes it
        unchanged. So the error, as large as the weight, need not be kept until the node's turn comes."""
        following: Node | None = node
        while following in self._index and arrivals[following] == 1 and following.name() in _MOVES:
            ((following, _),) = following.next_functions
        return following is not node and _is_parameter(following)

    def _place(self, node: Node | None, ways: set[Node]) -> int:
        if _is_parameter(node) or node in ways:
            return PARAMETER
        return NOWHERE if node is None else self._index.get(node, NOWHERE)


def _is_parameter(node: Node | None) -> bool:
    return isinstance(getattr(node, "variable", None), nn.Parameter)


def _pure(node: Node) -> bool:
    if not isinstance(node, BackwardCFunction):
        return True
    function = getattr(node, "_forward_cls", None)
    return getattr(function, "__module__", "").partition(".")[0] in _PURE


def derive_backward(
    node: Node, gradients: tuple[Tensor | None, ...], like: tuple[Tensor | None, ...]
) -> list[Tensor | None]:
    """What a node makes of gradients of its outputs, for each of its edges.

    Raises:
        RuntimeError: it returned another number of gradients than ``like``, what it returned to autograd.
    """
    call = node.apply if isinstance(node, BackwardCFunction) else node
    found = call(*gradients)  # type: ignore[operator]
    made = iter([part for part in (found if isinstance(found, tuple) else (found,)) if part is not None])
    # A Function in Python also returns None for arguments that are no tensors; autograd drops these.
    aligned = [None if expected is None else next(made, None) for expected in like]
    lacking = any(expected is not None and part is None for expected, part in zip(like, aligned, strict=True))
    if lacking or next(made, None) is not None:
        raise RuntimeError(f"{node.name()} returned other gradients in a second run")
    return [
        part if part is None or expected is None else _as_autograd(part, expected)
        for part, expected in zip(aligned, like, strict=True)
    ]


def _as_autograd(gradient: Tensor, like: Tensor) -> Tensor:
    """The gradient as autograd passes it on: for a bias that was broadcast, the sum."""
    if gradient.shape != like.shape:
        gradient = gradient.sum_to_size(like.shape)
    return gradient if gradient.dtype == like.dtype else gradient.to(like.dtype)
