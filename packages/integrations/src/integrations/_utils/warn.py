"""``warn``: a warning that points at the user's line."""

from __future__ import annotations

from pathlib import Path

import actcore.warn

_OURS = str(Path(__file__).parents[1])


def warn(message: str | Warning) -> None:
    """Warn at the line of the innermost frame that is neither ours nor torch's."""
    actcore.warn.warn(message, _OURS)
