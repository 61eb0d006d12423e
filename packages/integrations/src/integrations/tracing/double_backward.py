"""``DoubleBackward``: record whether gradients of a compressed model are differentiated (``create_graph=True``).
``is_read``: find out whether such a backward computes with the elements of a saved tensor."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from integrations._utils.torch_internals import current_autograd_node, will_engine_execute_node
from integrations.policies.operators import OPERATORS
from integrations.policies.rules import RULES, Need

if TYPE_CHECKING:
    from integrations.tracing.storage.regions import LastRestored

Kinds = tuple[str, ...]


class DoubleBackward:
    """Record whether a backward with ``create_graph=True`` reads the tensors that a model's forwards stored.

    Args:
        tell: is called at the first such backward. Its argument is ``True`` if the backward reads rounded tensors, and
            ``False`` if it reads exact ones in a trial (see ``try_forward``).

    Attributes:
        met: whether there was such a backward.
    """

    def __init__(self, tell: Callable[[bool], None]) -> None:
        self.met = False
        self._tell = tell
        # By kinds of inputs: trials, which round nothing to find out whether gradients are differentiated. The stored
        # tensors of a trial keep its ``LastRestored`` alive.
        self._trials: dict[Kinds, list[weakref.ref[LastRestored]]] = {}

    @property
    def tries(self) -> bool:
        """Whether a trial is running, so that exactly stored tensors count, too."""
        trials = tuple(self._trials.values())  # another thread's forward may add one meanwhile
        return any(reference() is not None for trial in trials for reference in trial)

    def is_tried(self, kinds: Kinds) -> bool:
        """Return whether a trial with such inputs has run, including its backward."""
        trial = self._trials.get(kinds)
        return trial is not None and all(reference() is None for reference in trial)

    def try_forward(self, kinds: Kinds, last: LastRestored) -> None:
        """Record a trial: a forward that rounds nothing. Its regions keep ``last`` alive until backward frees them."""
        self._trials.setdefault(kinds, []).append(weakref.ref(last))

    def meet(self, rounded: bool) -> None:
        """Record a backward with ``create_graph=True``, and whether it reads rounded tensors."""
        if not self.met:
            self.met = True
            self._tell(rounded)


_PRODUCTS: Mapping[str, Mapping[str, tuple[int, ...]]] = MappingProxyType(
    {
        "MmBackward": {"self": (1,), "mat2": (0,)},
        "BmmBackward": {"self": (1,), "mat2": (0,)},
        "AddmmBackward": {"mat1": (2,), "mat2": (1,)},
        "SparseAddmmBackward": {"mat1": (2,), "mat2": (1,)},
        "BaddbmmBackward": {"batch1": (2,), "batch2": (1,)},
        "AddbmmBackward": {"batch1": (2,), "batch2": (1,)},
        "MvBackward": {"self": (1,), "vec": (0,)},
        "AddmvBackward": {"mat": (2,), "vec": (1,)},
        "DotBackward": {"self": (1,), "tensor": (0,)},
        "AddrBackward": {"vec1": (2,), "vec2": (1,)},
        "MulBackward": {"self": (1,), "other": (0,)},
        "AddcmulBackward": {"tensor1": (2,), "tensor2": (1,)},
        "LinearBackward": {"input": (1,), "weight": (0,)},
        "ConvolutionBackward": {"input": (1,), "weight": (0,)},
        "DivBackward": {"self": (1,), "other": (0, 1)},
    }
)
"""Nodes of operators that are linear in each factor. The numbers are the inputs whose gradients read a saved factor. If
only the gradient of a layer's input is wanted, the node unpacks that input, too, but reads the weight alone."""

_BY_SIGN = frozenset(name for entry in OPERATORS if entry.compares for name in entry.names)
"""Operators that levels keep exactly, although their backward only needs to know on which side of a bound an element
is."""


def has_numbers(dtype: torch.dtype) -> bool:
    """Return whether a tensor of this dtype may be rounded: not one of masks or indices."""
    return dtype.is_floating_point or dtype.is_complex


def is_read(packed: object, exactly: bool = False) -> bool:
    """Return whether the backward node that unpacks a saved tensor computes with its elements.

    Args:
        packed: the packed object that autograd holds.
        exactly: whether the elements are exact. Nodes that only look at signs or shapes do not count then.
    """
    node = current_autograd_node()
    if node is None:
        return True
    name = node.name().rstrip("0123456789")
    if exactly and _is_linear_in_pieces(name):
        return False
    for field, edges in _PRODUCTS.get(name, {}).items():
        if getattr(getattr(node, f"_raw_saved_{field}", None), "data", None) is packed:
            return any(is_wanted(node, edge) for edge in edges)
    return True


@lru_cache(maxsize=1024)
def _is_linear_in_pieces(node: str) -> bool:
    """Return whether a node only needs to know on which side of a bound elements are, or their shape.

    Args:
        node: its name, such as ``AvgPool2DBackward``.
    """
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=\dD)(?=[A-Z])", "_", node.removesuffix("Backward"))
    operator = words.lower()
    rule = RULES.get(operator)
    needs = () if rule is None else (rule.input, rule.result)
    return operator in _BY_SIGN or not {Need.SIGN, Need.INSIDE, Need.SHAPE}.isdisjoint(needs)


def is_wanted(node: Any, edge: int) -> bool:
    """Return whether this backward computes the gradient of one of a node's inputs.

    Args:
        node: a node of the graph, such as the context of a ``torch.autograd.Function``.
        edge: the number of the input among those that are tensors.
    """
    functions = node.next_functions
    function = functions[edge][0] if edge < len(functions) else None
    if function is None:
        return False
    try:
        return will_engine_execute_node(function)
    except RuntimeError:  # torch cannot tell for a leaf whose gradient is wanted
        return True
