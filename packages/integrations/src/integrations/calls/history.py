"""The history of a tensor: the node of autograd's graph that made it.

``grad_fn`` must not be read of every tensor that a forward touches. It makes a Python object of the node, which stays
as long as the node does, and a chain of nodes that have such objects is freed by recursion: with torch 2.15 and a stack
of 8 MiB, 45,000 of them end the process, and without such objects 150,000 do not. Of a view, ``grad_fn`` and
``is_leaf`` wait for a lock, and raise where the view's base was changed in place and autograd cannot follow.
"""

from __future__ import annotations

from torch import Tensor
from torch.autograd.graph import Node

MOST_NODES = 1 << 14
"""How many nodes of one graph may be made Python objects of: a third of what a stack of 8 MiB bears."""


def has_history(tensor: Tensor) -> bool:
    """Whether an operator that autograd recorded made the tensor: whether ``grad_fn`` is there. True of a view that
    autograd cannot follow, since its base has one."""
    try:
        return not tensor.is_leaf
    except RuntimeError:
        return True


def node_of(tensor: Tensor) -> Node | None:
    """``grad_fn``, for a few tensors of a forward; ``None`` for a view that autograd cannot follow, too."""
    try:
        return tensor.grad_fn if tensor.requires_grad else None
    except RuntimeError:
        return None
