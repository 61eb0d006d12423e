"""Hooks for what a region of ``torch.compile`` saves, which are inlined into its graphs, and the runs of a region.

AOTAutograd traces a pair of ``GraphModule`` hooks into a region's two graphs, once for each tensor that goes from one
to the other; ``compiled_regions`` plans what they do. What differs from step to step, a row of the report and a stream
of noise, an operator of ours asks of the session in every run: Python's own part of a compiled region runs but once.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from actcore import Kept, uncompiled
from actcore import replay as native
from integrations._torch import (
    DYNAMO,
    HOOKS_FILTERING,
    callback_handler,
    functorch_config,
    top_saved_tensors_default_hooks,
    tracing_context,
)
from integrations.rules.levels import Level
from integrations.runtime.compiled.regions import Entry, entries, entry_of
from integrations.runtime.compiled.runs import record_in_region

if TYPE_CHECKING:
    from integrations.runtime.session import Session

_COUNTERS = 1 << 48  # keys of actcore's counters, far from those that it gives itself


_here = threading.local()  # .session: the one whose hooks are the innermost in a thread


@contextmanager
def hooks_of(session: Session, level: Level) -> Iterator[tuple[Any, Any]]:
    """A pair of saved-tensor hooks that hands what eager code saves to ``session``, and that compiled regions inline.

    The pair is the same one for a level, since a region is compiled anew for another. It is used even before
    ``torch._dynamo`` is imported: a library may compile its first region in the middle of this forward.
    Such a region is compiled with torch's own filter, so that its inputs and outputs are kept as they are.
    """
    if DYNAMO in sys.modules:
        _ask_for_all()
    outer, _here.session = getattr(_here, "session", None), session
    packing = native.enter(session.packing)
    try:
        yield _pair(level)
    finally:
        native.enter(packing)
        _here.session = outer


def _ask_for_all() -> None:
    """Has torch apply our hooks to a region's inputs and outputs, too, by a setting that it reads when it compiles.

    It would leave them alone, so that some were in no report: an input that a part of the model keeps alive, say.
    """
    handler = callback_handler()
    if handler is not None and _start not in handler.start_callbacks:  # torch.compiler.reset() takes them off
        handler.register_start_callback(_start)
        handler.register_end_callback(_end)


_settings: list[Any] = []  # while something is compiled: torch compiles one region at a time


def _start(given: Any) -> None:
    config = functorch_config()
    hooks = top_saved_tensors_default_hooks(True)
    if hooks is not None and isinstance(hooks[0], _Inlineable) and hasattr(config, HOOKS_FILTERING):
        _settings.append(getattr(config, HOOKS_FILTERING))
        setattr(config, HOOKS_FILTERING, "all")


def _end(given: Any) -> None:
    while _settings:
        setattr(functorch_config(), HOOKS_FILTERING, _settings.pop())


@cache
def _pair(level: Level) -> tuple[GraphModule, GraphModule]:
    return _inlineable(lambda packed: _pack(packed, level), native.packing), _inlineable(_unpack, native.unpacking)


def may_be_replayed() -> bool:
    """Whether there are regions in this process that a CUDA graph can run without telling anybody."""
    return any(entry.saved.device.type == "cuda" for entry in tuple(entries.values()))


class _Inlineable(GraphModule):
    """One of our hooks."""


def _inlineable(function: Callable[[Any], Any], eager: Callable[[Any], Callable[[Any], Any]]) -> GraphModule:
    """A graph of one call, which torch traces for each tensor. It is none of torch's own functions, which keeps its
    caches from taking one level's code for another's.

    Args:
        function: that is called.
        eager: makes, of the function as it is kept from ``torch.compile``, what eager code runs in the graph's place:
            for every tensor.
    """
    graph = Graph()
    graph.output(graph.call_function(function, (graph.placeholder("given"),)))
    module = _Inlineable({}, graph)
    type(module).__call__ = eager(uncompiled(function))  # type: ignore[method-assign]  # each GraphModule has a class of its own
    return module


def _pack(tensor: Tensor, level: Level) -> Any:
    if get_proxy_mode() is None:
        session: Session | None = getattr(_here, "session", None)
        return Kept.of(tensor) if session is None or _is_traced(tensor) else session.pack(tensor)
    entry = entry_of(level)
    if entry is None:
        return (tensor,)
    if not entry.told:
        return (entry.key, *entry.form.pack(tensor, level.seed, None))
    stream = torch.ops.integrations.met_in_region(tensor, entry.key)
    packed = entry.form.pack(tensor, level.seed, stream)
    # torch wants what is new before a tensor that is passed on.
    return (entry.key, *packed) if entry.form.rounds else (entry.key, stream, *packed)


def _unpack(packed: Any) -> Tensor:
    if not isinstance(packed, (tuple, list)):
        return native.unpack(packed)
    if len(packed) == 1:
        return packed[0]  # type: ignore[no-any-return]
    key, *rest = packed
    entry = entries[key]
    if entry.told and not entry.form.rounds:
        del rest[0]  # the stream, which is there so that the operator is
    return entry.form.unpack(rest, entry.saved.dtype, entry.saved.device)


def _is_traced(tensor: Tensor) -> bool:
    """Whether torch saves the tensor while it traces a region, as it does before version 2.15."""
    return type(tensor) is not Tensor and tracing_context() is not None


@torch.library.custom_op(
    "integrations::met_in_region", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)  # the tag: two calls are never one
def met_in_region(like: Tensor, key: int) -> Tensor:
    """Tells the running session that a compiled region saves ``like``; ``Int64[Tensor, "1"]``, the stream for it.

    A replayed CUDA graph runs no Python. There the stream comes from a counter on the device, and nobody is told.
    """
    session: Session | None = getattr(_here, "session", None)
    entry = entries.get(key)
    captured = like.is_cuda and torch.cuda.is_current_stream_capturing()
    if session is None or entry is None or captured:
        return _counted(entry, key, like)
    if like.is_cuda and not entry.counted:  # a capture needs a counter that is there
        _counted(entry, key, like)
    stream = record_in_region(session, entry, like)
    signed = stream - (1 << 64) if stream >= 1 << 63 else stream
    return torch.full((1,), signed, dtype=torch.int64, device=like.device)


def _counted(entry: Entry | None, key: int, like: Tensor) -> Tensor:
    if entry is not None:
        entry.counted = True
    stream: Tensor = torch.ops.actcore.next_stream(like, _COUNTERS + key)
    return stream


@met_in_region.register_fake
def _(like: Tensor, key: int) -> Tensor:
    return like.new_empty(1, dtype=torch.int64)
