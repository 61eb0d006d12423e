"""Whether a tensor may have masked elements: replaced by the lowest number, or by minus infinity.

A group of such elements and others would have steps as large as the mask's value, or none that is finite, and nothing
would be left of the others. Which operators made the elements tells without looking at them, which would wait for a
device. It is a list, and no list knows all ways to mask; so what is in the CPU's memory is looked at, too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from actcore import Layout
from actcore.ops import below_autograd
from integrations.calls.history import node_of

# They move elements or take some, and change none.
_MOVES = frozenset(
    {
        *("Alias", "AsStrided", "Clone", "Copy", "Diagonal", "Expand", "Flip", "Gather", "Index", "IndexSelect"),
        *("Permute", "Repeat", "ReshapeAlias", "Roll", "Select", "Slice", "Split", "SplitWithSizes", "Squeeze", "T"),
        *("ToCopy", "Transpose", "Unbind", "Unfold", "Unsqueeze", "UnsafeView", "View"),
    }
)
# They scale elements, by numbers or by other elements.
_SCALES = frozenset(("Mul", "Div", "Neg"))
# With what has no gradient, they may add a mask, or take it where it is further away.
_SUMS = frozenset(("Add", "Sub", "Maximum", "Minimum"))
# With what has no gradient, they put it beside the rest.
_JOINS = frozenset(("Cat", "Stack"))
# They put values in places of some elements, or beside them.
_PUTS = frozenset(
    {
        *("AsStridedScatter", "ConstantPadNd", "CopySlices", "DiagonalScatter", "Fill", "IndexCopy", "IndexFill"),
        *("IndexPut", "MaskedFill", "MaskedScatter", "Scatter", "SelectScatter", "SliceScatter", "Where"),
    }
)


def may_be_masked(tensor: Tensor) -> bool:
    """Whether the last operator on the elements, a sum or a choice, put what has no gradient to or in place of what
    has one, wherever they went and were scaled since: the bias of attention, ``(scores + mask) / 8``, is made so, and
    hidden states, sums of what has a gradient, are not."""
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
    """Whether a group of the tensor's elements, as they are stored, is so wide that codes would leave nothing of most
    of them, as masked elements make it: ``torch.ops.actcore.has_wide_group``. Reads the tensor: for the CPU."""
    flat = Layout.of(tensor).flatten(tensor.detach())
    return bool(below_autograd(torch.ops.actcore.has_wide_group.default, flat, group_size))
