"""Which frames of a compressed model dynamo compiles, the part of ``torch.compile`` that reads Python."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache
from types import CodeType, FunctionType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet, finalize

import torch
from torch import nn

from integrations._utils.running_module import all_modules
from integrations._utils.torch_internals import (
    DYNAMO,
    TRACE_AUTOGRAD,
    FrameAction,
    FrameExecStrategy,
    dynamo_config,
    find_backend,
    get_eval_frame_callback,
    instruction_translator,
    optimized_module,
    reset_code,
    set_code_exec_strategy,
)

Function = TypeVar("Function", bound=Callable[..., Any])

_SKIPS = None not in (FrameExecStrategy, FrameAction, set_code_exec_strategy, get_eval_frame_callback)
"""Whether torch has the private names with which frames are skipped."""


def left_to_python(function: Function) -> Function:
    """A decorator: dynamo skips the function's own frames, and goes on with those that it calls.

    ``torch.compiler.disable(recursive=False)`` would import the compiler for everyone, and break the graph of a
    function that calls this one. Where torch has no such thing, dynamo traces the frames as it does others.
    """
    if _SKIPS:
        set_code_exec_strategy(function.__code__, FrameExecStrategy(FrameAction.SKIP, FrameAction.DEFAULT))
    return function


def left_to_python_with_callees(function: Function) -> Function:
    """``left_to_python``, and dynamo skips the frames that the function calls, too. Where dynamo traces the caller, it
    traces this function as any other."""
    if _SKIPS:
        set_code_exec_strategy(function.__code__, FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP))
    return function


def not_inlined(function: Function) -> Function:
    """``left_to_python``, and dynamo also breaks the graph of a function that calls this one."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return left_to_python(function)


def skips_frames() -> bool:
    """Whether ``left_to_python`` does anything here."""
    return _SKIPS


# The function without dynamo, for itself and all that it calls.
without_dynamo: Callable[[Function], Function] = cache(torch.compiler.disable)


@left_to_python
def compiles_callees() -> bool:
    """Whether dynamo compiles the frames that the caller calls: it is on, and has skipped the caller's own frame."""
    return DYNAMO in sys.modules and _SKIPS and callable(get_eval_frame_callback())


def compiled_module(model: nn.Module) -> nn.Module:
    """The module inside, if ``torch.compile`` made this one: it wraps that module, and its copies lack the attributes
    that were set on it."""
    if DYNAMO not in sys.modules:
        return model
    inner = getattr(model, "_orig_mod", None) if isinstance(model, optimized_module()) else None
    return inner if isinstance(inner, nn.Module) else model


def has_compiled_parts(modules: Iterable[nn.Module]) -> bool:
    """Return whether ``torch.compile`` made one of the modules, or compiles its calls or its ``forward``."""
    return DYNAMO in sys.modules and any(_compiled_part(module) is not None for module in modules)


def _compiled_part(module: nn.Module) -> Any:
    """Return what runs a module as compiled code; ``None`` where nothing does."""
    if isinstance(module, optimized_module()):
        return module
    if module._compiled_call_impl is not None:
        return module._compiled_call_impl
    forward = module.__dict__.get("forward")
    # Functions that dynamo is to leave alone have the first of these attributes, too.
    is_compiled = hasattr(forward, "_torchdynamo_orig_callable") and not hasattr(forward, "_torchdynamo_disable")
    return forward if is_compiled else None


def is_mostly_compiled(model: nn.Module) -> bool:
    """Return whether most layers of a model, those with parameters of their own, are in parts that inductor compiles,
    and the model is compiled only there."""
    if not has_compiled_parts(all_modules(model)[1:]) or _is_compiled_by_inductor(model):
        return False
    counts, seen = [0, 0], {model}
    waiting = [(child, False) for child in model._modules.values() if child is not None]
    while waiting:
        module, is_inside = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        is_inside = is_inside or _is_compiled_by_inductor(module)
        counts[is_inside] += bool(module._parameters)
        waiting.extend((child, is_inside) for child in module._modules.values() if child is not None)
    return counts[True] > counts[False]


def _is_compiled_by_inductor(module: nn.Module) -> bool:
    """Whether inductor compiles a module, its calls or its ``forward``, as far as torch tells."""
    compiled = _compiled_part(module)
    if compiled is None:
        return False
    found = _by_inductor.get(compiled)
    if found is None:
        found = _by_inductor[compiled] = _is_inductor(find_backend(compiled))
    return found


_by_inductor: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()  # each forward asks


def _is_inductor(backend: Any) -> bool:
    """Whether a backend is inductor, or what dynamo wraps it in."""
    while backend is not None:
        if "inductor" in (getattr(backend, "compiler_name", ""), getattr(backend, "_compiler_name", "")):
            return True
        # What dynamo wraps a backend in: one to debug it, or DistributedDataParallel's, which is a method.
        outer = getattr(backend, "__self__", backend)
        backend = getattr(outer, "_torchdynamo_orig_backend", getattr(outer, "backend_compile_fn", None))
    return False


@contextmanager
def without_compiled_parts(modules: Iterable[nn.Module]) -> Iterator[None]:
    """A block in which parts of a model that are compiled run as eager code.

    Dynamo leaves frames to Python by itself where a mode sees their operators, but raises if it was to compile them
    with ``fullgraph=True``. Torch has one such setting for all threads: others run compiled code in eager mode, too,
    while this lasts.

    Args:
        modules: the parts.
    """
    with torch.compiler.set_stance("force_eager") if has_compiled_parts(modules) else nullcontext():
        yield


def may_break_graph() -> bool:
    """Whether the graph that is being traced may be broken, with the frame behind the break left to Python. With
    ``fullgraph=True`` it may not."""
    if not _SKIPS:
        return False
    try:
        tracing = instruction_translator().current_tx()
        return not (tracing.one_graph or tracing.error_on_graph_break)
    except (ImportError, AttributeError):
        return False


def traces_backward() -> bool:
    """Whether dynamo, which is tracing, takes a backward that the traced code runs into its graph."""
    return bool(getattr(dynamo_config(), TRACE_AUTOGRAD, False))


def compiles_with_inductor() -> bool:
    """Whether inductor compiles the graph that dynamo has just traced, as far as torch tells."""
    try:
        backend = instruction_translator().current_tx().output.compiler_fn
    except (ImportError, AttributeError):
        return False
    return _is_inductor(backend)


def is_own_frame(output: Any) -> bool:
    """Whether the graph that dynamo has traced is all that a frame of ``own_frame`` calls, with no break in it.

    Args:
        output: dynamo's state for the graph.
    """
    reason = getattr(output, "compile_subgraph_reason", None)
    root = getattr(output, "root_tx", None)
    return getattr(reason, "graph_break", True) is False and getattr(root, "f_code", None) in _own_codes


def own_frame() -> Callable[..., Any]:
    """A new function that calls what it is given, for dynamo to compile, since dynamo skips the frames of torch's own
    modules.

    Dynamo keeps and counts what it compiled by code object, so each model gets a function of its own. What was compiled
    refers to the code object, which the collector does not look into, so that neither would ever go by itself: they go
    with the function.
    """
    function = FunctionType(_call.__code__.replace(), _call.__globals__, _call.__name__)
    _own_codes.add(function.__code__)
    if reset_code is not None:
        finalize(function, reset_code, function.__code__).atexit = False
    return function


_own_codes: WeakSet[CodeType] = WeakSet()


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return function(*args, **kwargs)
