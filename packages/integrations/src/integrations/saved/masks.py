"""Whether some of a tensor's elements may be masked: replaced by the lowest number, or by minus infinity.

A group of such elements and others would have steps as large as the mask's value, or none that is finite, and nothing
would be left of the others. The values are not looked at, which would wait for the device; the operators that made them
are.
"""

from __future__ import annotations

from torch import Tensor

# They move elements, and change none.
_MOVES = frozenset(
    {
        *(
            "Alias",
            "AsStrided",
            "Clone",
            "Copy",
            "Expand",
            "Permute",
            "ReshapeAlias",
            "Select",
            "Slice",
            "Squeeze",
            "T",
        ),
        *("ToCopy", "Transpose", "Unsqueeze", "UnsafeView", "View"),
    }
)
_SUMS = ("Add", "Sub")
_MASKS = ("MaskedFill", "MaskedScatter", "Where")


def may_be_masked(tensor: Tensor) -> bool:
    """Whether the last operator on the elements, a sum or a choice, put what has no gradient to or in place of what
    has one: the bias of attention, ``bias + mask``, is made so, and hidden states, sums of what has a gradient, are
    not."""
    node = tensor.grad_fn
    while node is not None:
        name = node.name().partition("Backward")[0]
        if name in _MASKS:
            return True
        if name in _SUMS:
            return any(following is None for following, _ in node.next_functions)
        if name not in _MOVES:
            return False
        node = node.next_functions[0][0]
    return False
