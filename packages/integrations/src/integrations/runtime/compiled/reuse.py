"""``free_at_once``: inductor frees a buffer when it was read for the last time, in graphs that have a budget.

By itself it keeps a buffer for a later result of the same size where that does not raise the peak, as it estimates it.
The estimate has less than what is alive, and the step of a Llama took 1.16 times its budget.
"""

from __future__ import annotations

import threading
from typing import Any

from integrations._utils.torch_internals import callback_handler, inductor_config

_SETTING = "allow_buffer_reuse"

_here = threading.local()  # .stopped: whether the setting is changed while this thread compiles

_lazy: set[str] = set()  # torch's ids of graphs whose backward may be compiled later, by their first backward


def free_at_once() -> None:
    """Changes inductor's setting until the graph is compiled that dynamo compiles now, and again for its backward."""
    handler = callback_handler()
    if handler is None or not hasattr(inductor_config(), _SETTING):
        return
    if _start not in handler.start_callbacks:  # torch.compiler.reset() removes both
        handler.register_start_callback(_start)
    if _end not in handler.end_callbacks:
        handler.register_end_callback(_end)
    _stop()


def _stop() -> None:
    if getattr(inductor_config(), _SETTING):
        _here.stopped = True
        setattr(inductor_config(), _SETTING, False)


def _is_lazy(given: Any) -> bool:
    return getattr(given.callback_trigger, "name", "") == "LAZY_BACKWARD"


def _start(given: Any) -> None:
    """Called by torch where a compilation starts."""
    if not _is_lazy(given):
        _lazy.discard(given.compile_id)  # torch gives ids anew after torch.compiler.reset()
    elif given.compile_id in _lazy:
        _stop()


def _end(given: Any) -> None:
    """Called by torch where a compilation has ended, or failed."""
    if getattr(_here, "stopped", False):
        _here.stopped = False
        if not getattr(inductor_config(), _SETTING):  # torch may have put the user's own setting back already
            setattr(inductor_config(), _SETTING, True)
        if not _is_lazy(given):
            _lazy.add(given.compile_id)
