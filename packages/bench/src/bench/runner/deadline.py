"""The time by which a command ends, on a machine that is lent for minutes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

_SHARE = 4  # of the whole time: the most that one measurement may take of it is the fourth part
_LEAST = 60.0  # seconds that it may take in any case: the libraries' start is among them


@dataclass(frozen=True)
class Deadline:
    """So many seconds from now.

    Attributes:
        seconds: ``None`` for no end.
        start: on the clock of ``time.monotonic``.
    """

    seconds: float | None = None
    start: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float | None:
        """Seconds until it comes; ``None`` where it never does."""
        return None if self.seconds is None else self.start + self.seconds - time.monotonic()

    @property
    def over(self) -> bool:
        """Whether it has come."""
        return self.left is not None and self.left <= 0

    @property
    def share(self) -> float | None:
        """Seconds that one measurement may take: what hangs shall not take the time of all others."""
        return None if self.seconds is None or self.left is None else min(self.left, max(self.seconds / _SHARE, _LEAST))

    def __str__(self) -> str:
        return "no deadline" if self.seconds is None else f"the deadline of {self.seconds:g} s"
