"""``DoubleBackward``: what a compressed model learns of backwards that build a graph of their own."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from integrations._storing.regions import LastRestored

Kinds = tuple[str, ...]


class DoubleBackward:
    """Whether backward has built a graph of its own (``create_graph=True``) from what a model's forwards have stored
    rounded.

    Args:
        tell: is called once it has, with whether this backward reads what is rounded, or is only known to be one that
            must not.

    Attributes:
        met: whether it has.
    """

    def __init__(self, tell: Callable[[bool], None]) -> None:
        self.met = False
        self._tell = tell
        # By kinds of inputs: what the stored tensors of forwards lead to that round nothing until it is known whether
        # there is double backward.
        self._trials: dict[Kinds, list[weakref.ref[LastRestored]]] = {}

    @property
    def tries(self) -> bool:
        """Whether tensors that are stored exactly count, too."""
        trials = tuple(self._trials.values())  # another thread's forward may add one meanwhile
        return any(reference() is not None for trial in trials for reference in trial)

    def is_tried(self, kinds: Kinds) -> bool:
        """Whether backward has been through a forward with such inputs that rounded nothing."""
        trial = self._trials.get(kinds)
        return trial is not None and all(reference() is None for reference in trial)

    def try_forward(self, kinds: Kinds, last: LastRestored) -> None:
        """Notes a forward that rounds nothing. Its regions keep ``last`` alive until backward has freed them."""
        self._trials.setdefault(kinds, []).append(weakref.ref(last))

    def meet(self, rounded: bool) -> None:
        """Notes that backward builds a graph of its own, and whether from what is rounded."""
        if not self.met:
            self.met = True
            self._tell(rounded)
