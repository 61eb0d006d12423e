"""``warn``: a warning that points at the user's line."""

from __future__ import annotations

import contextlib
import sys
import warnings
from pathlib import Path

import torch

# Files between the warning and the user's line: ours, the modules that torch calls, the end of a ``with``.
_BETWEEN = (str(Path(__file__).parent), str(Path(torch.__file__).parent), contextlib.__file__, "<eval_with_key>")


def warn(message: str | Warning, *between: str) -> None:
    """Warn at the line of the innermost frame that is neither ours nor torch's.

    Args:
        message: the text, or a warning of another class than ``UserWarning``.
        between: the beginnings of other file names to skip.
    """
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith((*_BETWEEN, *between)):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
