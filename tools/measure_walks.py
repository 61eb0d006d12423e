"""Measures how much code three flows pass through: the table "Walks" of docs/architecture.md.

    python tools/measure_walks.py

For each flow: the files and classes of ``integrations`` whose code runs, and the calls from where it begins to the
bytes or the solver, each function counted once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import integrations

ROOT = Path(integrations.__file__).parent


class Walk:
    """What runs of ``integrations``.

    Args:
        begin: the name of the function at which calls are counted from.
        end: the name of the function at which they are counted, in ``integrations`` or ``actcore``.
    """

    def __init__(self, begin: str, end: str) -> None:
        self.files: set[str] = set()
        self.classes: set[str] = set()
        self.calls: list[str] = []
        self._begin, self._end = begin, end

    def see(self, frame: FrameType, event: str, _: Any) -> None:
        """Note a call."""
        if event != "call":
            return
        code = frame.f_code
        if code.co_name == self._end and not self.calls:
            self.calls = self._stack(frame)
        if code.co_filename.startswith(str(ROOT)):
            self.files.add(code.co_filename)
            owner, _, name = code.co_qualname.rpartition(".")
            if owner and "<" not in owner + name:
                self.classes.add(f"{code.co_filename}:{owner}")

    def _stack(self, frame: FrameType | None) -> list[str]:
        """Return the calls below the beginning, the outermost first."""
        found: list[str] = []
        while frame is not None:
            code = frame.f_code
            if "<" not in code.co_name:
                found.append(f"{Path(code.co_filename).name}:{code.co_qualname}")
            if code.co_name == self._begin:
                return found[::-1]
            frame = frame.f_back
        return []


@contextmanager
def watched(walk: Walk) -> Iterator[None]:
    """A block whose calls are noted."""
    sys.setprofile(walk.see)
    try:
        yield
    finally:
        sys.setprofile(None)
