"""What backward needs of the tensors that an operator saves, by each tensor's role."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Need(Enum):
    """What backward needs of a saved tensor."""

    LINEAR = "enters a gradient linearly: unbiased bits suffice"
    PRODUCT = "factor of a product: unbiased bits, whose error goes on into the gradients below"
    NORM = "input of a normalization: its error tilts every gradient below"
    MOMENT = "its squares are taken, as normalizations do: its error tilts every gradient below"
    SATURATING = "the derivative changes slowly, and no more beyond a range: bits within it bound the error"
    BOUNDED = "a result of bounded range, in which the derivative is a product: bits bound the error"
    ATTENTION = "query, key or value: backward recomputes attention from the stored ones"
    RECOMPUTED = "input of a checkpoint: backward recomputes the segment from the stored one"
    SIGN = "backward asks only whether it is positive: one exact bit"
    INSIDE = "backward asks only whether it is inside an interval: one exact bit"
    MASK = "two values: one exact bit"
    SHAPE = "backward asks only for its shape: nothing is stored"
    EXACT = "kept exactly"


@dataclass(frozen=True)
class Rule:
    """What backward needs of the tensors that one operator saves, by each tensor's role.

    Attributes:
        input: the first tensor argument.
        other: any other argument.
        result: a tensor that the call computed and gradients flow through; a clone of the input of an operator that
            works in place is one.
        internal: a tensor that the call made for itself, such as a mask or statistics.
        recomputed: an argument from which backward recomputes the call.
        why: the reason why what is kept exactly is.
        jumps: whether backward needs to know on which side of a jump the elements of the exactly kept tensors are.
    """

    input: Need = Need.EXACT
    other: Need = Need.EXACT
    result: Need = Need.EXACT
    internal: Need = Need.EXACT
    recomputed: Need = Need.EXACT
    why: str = ""

    jumps: bool = False

    def need(self, role: str) -> Need:
        need: Need = getattr(self, role)
        return need

    def decides(self, role: str) -> bool:
        """Whether backward needs to know on which side of a jump a tensor's elements are, or only its shape."""
        return self.jumps or self.need(role) in (Need.SIGN, Need.INSIDE, Need.SHAPE)
