"""Saved-tensor hooks that are inlined into the graphs of a region of ``torch.compile``, and what a region does in each
run.

AOTAutograd traces a pair of ``GraphModule`` hooks into a region's two graphs, once for each tensor that goes from one
to the other. ``regions`` plans what they do there. Python runs only while a region is traced; what differs from step to
step, the streams of noise, comes from an operator in C++ (``runs``).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.fx import Graph, GraphModule
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from actcore import Kept, uncompiled
from actcore import replay as native
from integrations._utils.torch_internals import (
    DYNAMO,
    HOOKS_FILTERING,
    HookPair,
    callback_handler,
    functorch_config,
    top_saved_tensors_default_hooks,
    tracing_context,
)
from integrations.policies.levels import Level
from integrations.runtime.compiled.order import STREAM
from integrations.runtime.compiled.partition import expect_part, forget_expected
from integrations.runtime.compiled.regions import draw_once, entries, read_entry
from integrations.runtime.compiled.runs import begin

if TYPE_CHECKING:
    from integrations.runtime.session import Session

_here = threading.local()  # .session: the session that was entered last in the thread


class Innermost:
    """A context in which a session is the innermost of its thread.

    It returns a pair of saved-tensor hooks that hands what eager code saves to the session, and that compiled regions
    inline. All sessions of a level have the same pair, so that a region is not compiled anew for each forward. The pair
    is used even before ``torch._dynamo`` is imported: a library may compile its first region in the middle of this
    forward. Such a region is compiled with torch's own filter, which keeps its inputs and outputs as they are.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> HookPair:
        session = self._session
        if DYNAMO in sys.modules:
            _ask_for_all()
        session.outer = session_here()
        try:
            _here.session = session
            native.enter(session.packing)
            begin(session.regions)
            return _held_by(session, session.level)
        except BaseException:
            self.leave()
            raise

    def __exit__(self, *error: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Makes the session around it the innermost again, if it is the innermost now."""
        session = self._session
        if session_here() is session:
            outer = session.outer
            while outer is not None and outer.left:  # before this one, in the wrong order
                outer = outer.outer
            packing = None if outer is None else outer.packing
            _here.session = outer  # first: once the call is over, an interrupt may come
            native.enter(packing)
            begin(None if outer is None else outer.regions)


def session_here() -> Session | None:
    """The session that was entered last in this thread, and not left."""
    return getattr(_here, "session", None)


def _ask_for_all() -> None:
    """Has torch apply the hooks to a region's inputs and outputs, too, by a setting that it reads when it compiles.

    By default torch leaves these alone, and some were in no report: an input that a part of the model keeps alive, say.
    """
    handler = callback_handler()
    if handler is not None and _start not in handler.start_callbacks:  # torch.compiler.reset() removes the callbacks
        handler.register_start_callback(_start)
        handler.register_end_callback(_end)


_settings: list[Any] = []  # torch's settings while it compiles; it compiles one region at a time


def _start(given: Any) -> None:
    expect_part()
    config = functorch_config()
    hooks = top_saved_tensors_default_hooks(True)
    if hooks is not None and isinstance(hooks[0], _Inlineable) and hasattr(config, HOOKS_FILTERING):
        _settings.append(getattr(config, HOOKS_FILTERING))
        setattr(config, HOOKS_FILTERING, "all")


def _end(given: Any) -> None:
    forget_expected()
    while _settings:
        setattr(functorch_config(), HOOKS_FILTERING, _settings.pop())


def _held_by(session: Session, level: Level) -> tuple[GraphModule, GraphModule]:
    """The pair of a level. The specs hold it from one forward of a model to the next, however many levels there are."""
    held = session.specs.hooks
    if held is None or (held[0] is not level and held[0] != level):
        held = session.specs.hooks = level, _pair(level)
    return held[1]


@lru_cache(maxsize=16)  # each block of a run may have a seed of its own; regions keep the pairs that they inline
def _pair(level: Level) -> tuple[GraphModule, GraphModule]:
    pair = _inlineable(lambda packed: _pack(packed, level), native.packing), _inlineable(_unpack, native.unpacking)
    for hook in pair:
        hook.level = level
    return pair


def may_be_replayed() -> bool:
    """Whether this process has regions that a CUDA graph could replay, which runs no Python."""
    return any(entry.saved.device.type == "cuda" for entry in tuple(entries.values()))


class _Inlineable(GraphModule):
    """A hook of this module.

    Attributes:
        level: the level at which it stores.
    """

    level: Level

    def recompile(self) -> Any:
        """Makes no code of the graph: none is run, and torch would keep its source for as long as the process runs."""


def _inlineable(function: Callable[[Any], Any], eager: Callable[[Any], Callable[[Any], Any]]) -> _Inlineable:
    """A hook whose graph is one call, which torch traces for each tensor. The function is not one of torch's own, so
    that torch's caches tell the code of two levels apart.

    Args:
        function: what the graph calls.
        eager: makes the hook that eager code runs in the graph's place, from ``function`` shielded from
            ``torch.compile``.
    """
    graph = Graph()
    graph.output(graph.call_function(function, (graph.placeholder("given"),)))
    module = _Inlineable({}, graph)
    type(module).__call__ = eager(uncompiled(function))  # type: ignore[method-assign]  # each GraphModule has a class of its own
    return module


def _pack(tensor: Tensor, level: Level) -> Any:
    if get_proxy_mode() is None:
        session = session_here()
        return Kept.of(tensor) if session is None or _is_traced(tensor) else session.pack(tensor)
    entry = read_entry(level, session_here())
    if entry is None:
        return (tensor,)
    if not entry.draws:
        return (entry.number, *entry.form.pack(tensor, 0, None))
    stream = STREAM(tensor, entry.region.number, [])
    packed = entry.form.pack(tensor, entry.seed, stream)
    # torch wants new tensors before one that is passed on. The stream is among them so that the operator stays.
    return (entry.number, *packed) if entry.form.rounds else (entry.number, stream, *packed)


def _unpack(packed: Any) -> Tensor:
    if not isinstance(packed, (tuple, list)):
        return native.unpack(packed)
    if len(packed) == 1:
        return packed[0]  # type: ignore[no-any-return]
    number, *rest = packed
    entry = entries[number]
    if get_proxy_mode() is not None:
        draw_once(entry)
    if entry.draws and not entry.form.rounds:
        del rest[0]
    return entry.form.unpack(rest, entry.saved.dtype, entry.saved.device)


def _is_traced(tensor: Tensor) -> bool:
    """Whether torch saves the tensor while it traces a region, as it does before version 2.15."""
    return type(tensor) is not Tensor and tracing_context() is not None
