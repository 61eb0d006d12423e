"""``progress``: a line on stderr that says what takes longer than three seconds; ``stage``: what it is doing.

A terminal or notebook shows one transient line with the seconds so far. Elsewhere, as in a log file, a plain line is
printed, and another each minute. ``INTEGRATIONS_PROGRESS=0`` in the environment turns both off.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import wraps
from importlib.util import find_spec
from time import monotonic
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn

from integrations._utils.compiling import compiled_module

Given = ParamSpec("Given")
Result = TypeVar("Result")

AFTER = 3.0
"""Seconds until the line is shown."""

_EVERY = 0.5  # seconds between two updates of a transient line
_AGAIN = 60.0  # seconds between two plain lines
_SWITCH = "INTEGRATIONS_PROGRESS"

_here = threading.local()
_drawing = threading.Lock()  # a terminal has room for one transient line


@dataclass(eq=False)
class _Work:
    """What a thread is doing. Only its ``progress`` block keeps it alive.

    Attributes:
        title: what the block does.
        stage: what it is doing now; empty if nothing was said.
        started: when it began, by ``monotonic``.
        ended: whether the block is left.
    """

    title: str
    stage: str = ""
    started: float = field(default_factory=monotonic)
    ended: threading.Event = field(default_factory=threading.Event)

    def __str__(self) -> str:
        return f"{self.title}{self.stage and ': '}{self.stage}, {monotonic() - self.started:.0f} s"


class _Line(threading.Thread):
    """Shows the line. It holds the work weakly, so that it ends even if an interrupt comes while the block is left."""

    def __init__(self, work: _Work) -> None:
        super().__init__(name="integrations progress", daemon=True)
        self._work, self._ended = weakref.ref(work), work.ended

    def run(self) -> None:
        with suppress(Exception):  # a line is worth no error: the stream may be closed
            if not self._ended.wait(AFTER):
                self._show()

    def _show(self) -> None:
        if sys.stderr is None:
            return
        if _draws() and _drawing.acquire(blocking=False):
            try:
                self._draw()
            finally:
                _drawing.release()
            return
        off = f" ({_SWITCH}=0 turns this line off)"
        while sys.stderr is not None and (work := self._work()) is not None:
            print(f"{work} so far{off}", file=sys.stderr, flush=True)
            off = ""
            del work  # the block alone keeps it alive
            if self._ended.wait(_AGAIN):
                return

    def _draw(self) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        def text() -> Text:
            return Text(str(self._work() or ""), no_wrap=True, overflow="ellipsis")

        # Streams are not redirected: another thread may replace them meanwhile.
        console = Console(stderr=True)
        with Live(
            text(), console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        ) as live:
            while not self._ended.wait(_EVERY) and self._work() is not None:
                live.update(text(), refresh=True)


@contextmanager
def progress(title: str) -> Iterator[Callable[[str], None]]:
    """Wrap a block that may take long. After ``AFTER`` seconds, a line on stderr says what is going on; at the end of
    the block a transient line is removed. A block inside of another one of the same thread shows nothing of its own.

    Args:
        title: what the block does, such as ``"Planning Llama"``.

    Yields:
        ``stage``, which any function in the block may also call.
    """
    if _work_here() is not None or not _is_wanted():
        yield stage
        return
    work = _Work(title)
    line = _Line(work)
    try:
        _here.work = weakref.ref(work)
        with suppress(RuntimeError):  # there may be no room for another thread
            line.start()
        yield stage
    finally:
        work.ended.set()
        _here.work = None
        if line.ident is not None:
            line.join()


def stage(what: str) -> None:
    """Say what this thread's block of ``progress`` does from now on, such as ``"searching"``. Without such a block,
    nothing happens."""
    work = _work_here()
    if work is not None:
        work.stage = what


def shows_planning(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Return a function that plans for a model, its first argument, in a block of ``progress``."""

    @wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        model: Any = args[0] if args else kwargs.get("model")
        name = type(compiled_module(model)).__name__ if isinstance(model, nn.Module) else "a model"
        with progress(f"Planning {name}"):
            return function(*args, **kwargs)

    return call


def _work_here() -> _Work | None:
    reference: weakref.ref[_Work] | None = getattr(_here, "work", None)
    return None if reference is None else reference()


def _is_wanted() -> bool:
    """Return whether this process shows a line: it is rank 0, and nobody has turned it off."""
    if os.environ.get(_SWITCH) == "0":
        return False
    ranks = torch.distributed
    if ranks.is_available() and ranks.is_initialized():
        return ranks.get_rank() == 0
    return os.environ.get("RANK", "0") == "0"


def _draws() -> bool:
    """Return whether stderr can show a transient line: it is a terminal or a notebook, and no display of the user's,
    such as a rich progress bar, is drawn there already."""
    from rich.console import Console
    from rich.file_proxy import FileProxy

    if isinstance(sys.stderr, FileProxy) or isinstance(sys.stdout, FileProxy):
        return False
    console = Console(stderr=True)
    if console.is_jupyter:
        return find_spec("ipywidgets") is not None
    return sys.stderr.isatty() and not console.is_dumb_terminal
