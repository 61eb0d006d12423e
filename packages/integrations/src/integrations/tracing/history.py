"""The history of a tensor: the node of autograd's graph that made it.

``grad_fn`` must not be read of every tensor that a forward touches. It makes a Python object for the node, which lives
as long as the node, and a chain of nodes with such objects is freed by recursion: with torch 2.15 and a stack of 8 MiB,
45,000 of them end the process, and without such objects 150,000 do not. Of a view, ``grad_fn`` and ``is_leaf`` wait for
a lock, and raise if the view's base was changed in place and autograd cannot follow.
"""

from __future__ import annotations

from torch import Tensor
from torch.autograd.graph import Node

MOST_NODES = 1 << 14
"""For so many nodes of one graph Python objects may be made: a third of what a stack of 8 MiB bears."""


def has_history(tensor: Tensor) -> bool:
    """Whether an operator that autograd recorded made the tensor, that is, whether it has a ``grad_fn``. This is true
    of a view that autograd cannot follow, since its base has one."""
    try:
        return not tensor.is_leaf
    except RuntimeError:
        return True


def find_node(tensor: Tensor) -> Node | None:
    """``grad_fn``, to be asked for few tensors of a forward; ``None`` also for a view that autograd cannot follow."""
    try:
        return tensor.grad_fn if tensor.requires_grad else None
    except RuntimeError:
        return None
