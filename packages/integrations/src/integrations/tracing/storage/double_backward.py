"""``DoubleBackward``: record whether gradients of a compressed model are differentiated (``create_graph=True``)."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

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
