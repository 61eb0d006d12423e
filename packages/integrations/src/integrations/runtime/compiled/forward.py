"""``Compiled``: a model's forward under ``torch.compile``, of which the same is kept as a plan keeps in eager code.

Dynamo traces no dispatch modes, so that the tape of eager code has no place there. It does trace
``torch.utils.checkpoint``, as a region whose operators the partitioner of AOTAutograd keeps or repeats one by one; and
what it does with each is what the plan says (``tagging``). The region has to be one graph: where dynamo breaks it, the
model is compiled as it is, and a warning says so.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from integrations._torch import WRAP, TorchDispatchMode, constant_when_traced
from integrations.common.compiling import left_to_python, own_frame, without_dynamo
from integrations.common.in_model import ModelRef
from integrations.common.warn import warn
from integrations.planning.plan import Plan


class Compiled:
    """Runs a model's forward where dynamo is on.

    Args:
        model: that has the plan.
        plan: that its training forward follows, whatever the inputs look like.

    Attributes:
        asked: the plan.
        plan: the same, or where that is nested, the one of its front that is not, with the next peak.
    """

    def __init__(self, model: nn.Module, plan: Plan) -> None:
        self._model = ModelRef(model)
        self.asked = plan
        self.plan = plan = plan.flat  # torch.compile repeats nothing twice
        self._contexts = functools.partial(_contexts, plan)
        # By which torch tells compiled code on disk from that of another plan.
        self._contexts.cache_hash = _hash_of(plan)  # type: ignore[attr-defined]
        self.warned = False

    @left_to_python
    def run(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The forward's result, where dynamo skipped the caller's frame and compiles what it calls.

        Args:
            forward: of the model.
            args, kwargs: what it is called with.
        """
        run, _ = without_dynamo(_frames_of)(self)
        return run(self.trace, (forward, args, kwargs), {})

    @left_to_python
    def trace(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The forward's result, where dynamo traces the caller: ``torch.compiler.is_compiling()``.

        Args:
            forward: of the model.
            args, kwargs: what it is called with.
        """
        if not torch.compiler.is_compiling():  # nor did dynamo come through: it has left the call to Python
            _, run = without_dynamo(_frames_of)(self)
            without_dynamo(_warn_of_breaks)(self)
            return run(forward, args, kwargs)
        if not self.is_training() or _is_exporting():
            return forward(*args, **kwargs)
        _quieten()

        def region() -> Any:
            return forward(*args, **kwargs)

        return checkpoint(region, use_reentrant=False, context_fn=self._contexts)

    def is_training(self) -> bool:
        """Whether this is a forward to follow the plan in."""
        return self._model().training and torch.is_grad_enabled()


Frame = Callable[[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]], Any]

_frames: WeakKeyDictionary[Compiled, tuple[Frame, Frame]] = WeakKeyDictionary()


def _frames_of(compiled: Compiled) -> tuple[Frame, Frame]:
    """The frames that dynamo compiles for a model: with its plan, and without."""
    found = _frames.get(compiled)
    if found is None:
        found = _frames[compiled] = own_frame(), own_frame()
    return found


def _warn_of_breaks(compiled: Compiled) -> None:
    if compiled.is_training() and not compiled.warned:
        compiled.warned = True
        warn(
            f"the plan of {compiled.plan.model} is not followed under torch.compile, which decides what is kept: "
            "dynamo does not make one graph of its forward, or has given up compiling it again, or it changes Python "
            "objects (TORCH_LOGS=graph_breaks,recompiles says which); torch.compiler.disable(model) has it follow the "
            "plan in eager code"
        )


def _hash_of(plan: Plan) -> str:
    digest = hashlib.sha256(plan.graph.to_json().encode())
    digest.update(str(plan.choice.content()).encode())
    return digest.hexdigest()


def _contexts(plan: Plan) -> tuple[TorchDispatchMode, TorchDispatchMode]:
    """What ``torch.utils.checkpoint`` runs a forward in, and its repetition, which never comes."""
    from integrations.runtime.compiled.tagging import Tagging

    return Tagging(plan), Tagging(plan)


@constant_when_traced
def _is_exporting() -> bool:
    """Asked in Python: up to torch 2.11 dynamo takes it for true in all that it traces."""
    return torch.compiler.is_exporting()


@constant_when_traced
def _quieten() -> None:
    """Has torch say nothing against in-place operators here, which ``Tagging`` can do with; called while dynamo
    traces."""
    log = logging.getLogger(WRAP)
    if not any(isinstance(known, _Quiet) for known in log.filters):
        log.addFilter(_Quiet())


class _Quiet(logging.Filter):
    """Drops what is said of a region with contexts of ours."""

    def filter(self, record: logging.LogRecord) -> bool:
        frame = sys._getframe() if "context_fn" in record.getMessage() else None
        while frame is not None:
            contexts = frame.f_locals.get("context_fn")
            if isinstance(contexts, functools.partial) and contexts.func is _contexts:
                return False
            frame = frame.f_back
        return True
