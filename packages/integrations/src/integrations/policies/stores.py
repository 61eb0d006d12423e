"""``Store``: how a value waits that a plan neither keeps as it is nor recomputes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from integrations.policies.levels import Level

NODE_KEY = "actcore_store"
"""A key of ``node.meta`` in a graph that torch compiles: the store that a plan has for a node's result; ``None`` if the
result is kept as it is."""

PLANNED_KEY = "actcore_planned"
"""A key of ``node.meta`` in a graph that torch compiles: there if a model with a plan has made the node."""

_WORDS = re.compile(r"(?:exact|([1-8]) bits)(?:, ([1-8])-bit derivative)?(, on the host)?")


class HostCopies(NamedTuple):
    """How far the copies of a value to the host and back may run beside the computation, as in ``actcore.Offload``.

    Attributes:
        leaving: how many values may be on their way out once this one is stored.
        ahead: whether restoring the value starts the copy back of the one that was stored before it.
    """

    leaving: int
    ahead: bool


BESIDE = HostCopies(2, True)
"""All copies run beside the computation, and the device holds the memory of a few."""
WAITING = HostCopies(0, False)
"""The computation waits for each copy, so that the device holds nothing of a value that is on the host."""


@dataclass(frozen=True, order=True)
class Store:
    """What is stored in the place of a value's elements. ``str(store)`` is its name, and ``Store.of`` reads that.

    Operators that save one value may need different things of it, and each gets what it needs: the sign of a ReLU's
    result is one exact bit whatever ``bits`` says, while the convolution that reads it gets elements in ``bits``.

    Attributes:
        bits: bits an element for what bears rounding. ``None``: nothing is rounded; signs, masks, shapes and indices
            are stored in as few bits as they take, where backward needs no more, and everything else is kept as it is.
        slope_bits: bits an element for the derivative of an activation that has read the value (FewBit), in the place
            of its input; ``None``: the input is stored in ``bits``.
        host: whether the stored form waits in host memory.
    """

    bits: int | None = None
    slope_bits: int | None = None
    host: bool = False

    @property
    def exact(self) -> bool:
        """Whether backward gets the same bits as without the plan."""
        return self.bits is None and self.slope_bits is None

    @property
    def fine(self) -> bool:
        """Whether it stores values exactly or in at least 8 bits, which is precise enough for any reader."""
        return self.slope_bits is None and (self.bits is None or self.bits >= 8)

    def level(self, base: Level) -> Level:
        """The level that stores everything in this way. ``base`` says the rest: groups, the smallest size, what is
        kept."""
        bits = self.bits
        if bits is None:
            return replace(base, adaptive=False, offload=self.host)
        return replace(
            base,
            bits=bits,
            product_bits=bits,
            norm_bits=bits,
            pointwise_bits=bits,
            attention_bits=bits,
            checkpoint_bits=bits,
            adaptive=False,
            offload=self.host,
        )

    def __str__(self) -> str:
        form = "exact" if self.bits is None else f"{self.bits} bits"
        slope = "" if self.slope_bits is None else f", {self.slope_bits}-bit derivative"
        return f"{form}{slope}{', on the host' if self.host else ''}"

    @classmethod
    def of(cls, words: str) -> Self:
        """The store of that name.

        Raises:
            ValueError: there is none.
        """
        found = _WORDS.fullmatch(words)
        if found is None:
            raise ValueError(f"a store must be named as str(store) does, such as 'exact' or '8 bits', got {words!r}")
        bits, slope, host = found.groups()
        return cls(int(bits) if bits else None, int(slope) if slope else None, bool(host))
