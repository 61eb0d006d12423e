"""Whether a tensor may have masked elements, which were replaced by the lowest number or by minus infinity.

A group with such elements and others would have steps as large as the mask's value, or infinite ones, and nothing would
be left of the others. The operators that made the elements tell, without a look at the elements that would wait for a
device. They are a list, and no list knows all ways to mask; so tensors in the CPU's memory are looked at, too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from actcore import Layout
from actcore.ops import below_autograd
from integrations.tracing.history import node_of

# These move elements or select some, and change none.
_MOVES = frozenset(
    {
        *("Alias", "AsStrided", "Clone", "Copy", "Diagonal", "Expand", "Flip", "Gather", "Index", "IndexSelect"),
        *("Permute", "Repeat", "ReshapeAlias", "Roll", "Select", "Slice", "Split", "SplitWithSizes", "Squeeze", "T"),
        *("ToCopy", "Transpose", "Unbind", "Unfold", "Unsqueeze", "UnsafeView", "View"),
    }
)
# These scale elements, by numbers or by other elements.
_SCALES = frozenset(("Mul", "Div", "Neg"))
# With an operand that has no gradient, these may add a mask, or take it where it is further away.
_SUMS = frozenset(("Add", "Sub", "Maximum", "Minimum"))
# With an operand that has no gradient, these put it beside the rest.
_JOINS = frozenset(("Cat", "Stack"))
# These put values in the places of some elements, or beside them.
_PUTS = frozenset(
    {
        *("AsStridedScatter", "ConstantPadNd", "CopySlices", "DiagonalScatter", "Fill", "IndexCopy", "IndexFill"),
        *("IndexPut", "MaskedFill", "MaskedScatter", "Scatter", "SelectScatter", "SliceScatter", "Where"),
    }
)


def may_be_masked(tensor: Tensor) -> bool:
    """Whether the last sum or choice that made the elements combined an operand without a gradient with one that has
    one, however they were moved and scaled since. The bias of attention, ``(scores + mask) / 8``, is made so; hidden
    states, sums of operands with gradients, are not."""
    waiting, met = [node_of(tensor)], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in met:
            continue
        met.add(node)
        name = node.name().removeprefix("torch::autograd::").partition("Backward")[0]
        before = [found for found, _ in node.next_functions]
        if name in _PUTS or (name in _SUMS | _JOINS and None in before):
            return True
        if name in _SCALES | _JOINS:
            waiting += before
        elif name in _MOVES:
            waiting.append(before[0])
    return False


def is_masked(tensor: Tensor, group_size: int) -> bool:
    """Whether a group of the tensor's elements, as they are stored, is so wide, as masked elements make it, that codes
    would leave nothing of most of them: ``torch.ops.actcore.has_wide_group``. Reads the tensor, and so is meant for the
    CPU."""
    flat = Layout.of(tensor).flatten(tensor.detach())
    return bool(below_autograd(torch.ops.actcore.has_wide_group.default, flat, group_size))
