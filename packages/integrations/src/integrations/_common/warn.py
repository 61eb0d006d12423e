"""``warn``: a warning that points at the user's line."""

from __future__ import annotations

import contextlib
import sys
import warnings
from pathlib import Path

import torch

# Files between the warning and the user's line: ours, the modules that torch calls, the end of a ``with``.
_BETWEEN = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent), contextlib.__file__, "<eval_with_key>")


def warn(message: str) -> None:
    """Warns at the line of the innermost frame that is neither ours nor torch's."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
