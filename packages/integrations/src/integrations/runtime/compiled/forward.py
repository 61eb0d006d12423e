"""``Compiled``: a model's forward under ``torch.compile``, which keeps what a plan keeps in eager code.

Dynamo traces no dispatch modes, so the tape of eager code cannot follow the forward. It does trace
``torch.utils.checkpoint`` as a region, and AOTAutograd's partitioner decides for each operator of the region whether to
keep or to repeat it. ``tagging`` has it decide as the plan does, or leaves an exact plan to ``partition``, which
divides inductor's graph by itself. The region has to be one graph. Where dynamo breaks it, ``partition`` divides each
of inductor's graphs; with another backend, a plan with a memory budget raises, and another is dropped with a warning.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from integrations._utils.compiling import (
    is_mostly_compiled,
    left_to_python,
    left_to_python_with_callees,
    own_frame,
    without_dynamo,
)
from integrations._utils.in_model import ModelRef
from integrations._utils.torch_internals import WRAP, TorchDispatchMode, constant_when_traced, dynamo_counters
from integrations._utils.warn import warn
from integrations.planner.chunked import chunk_op
from integrations.planner.plan import Plan
from integrations.runtime.compiled.joint_plans import RUN_EAGER, JointPlan, has_promise, refuse, require_together
from integrations.runtime.compiled.partition import divide_parts, hash_plan
from integrations.runtime.compiled.runs import runs_here
from integrations.runtime.compiled.sizes import note_given


class Compiled:
    """Runs a model's forward where dynamo is on.

    Args:
        model: the model that has the plan.
        plan: the plan that its training forward follows, whatever the inputs look like.
        falls_back: whether the compiled step may exceed the plan's budget, whatever the plan says of that.

    Attributes:
        asked: the plan as given.
        plan: the plan that is followed. Where the given one is nested, it is the plan of the same front with the next
            peak that is not.
    """

    def __init__(self, model: nn.Module, plan: Plan, falls_back: bool = False) -> None:
        self._model = ModelRef(model)
        self.asked = plan
        if falls_back:
            plan = plan.with_bounds(replace(plan.bounds, fallback="least"))
        self.plan = plan = plan.flat  # torch.compile repeats nothing twice, as a nested plan does
        object.__setattr__(plan, "others", self.asked.others)  # where reports look for what the compiler has made of it
        self._contexts = functools.partial(_contexts, plan)
        # The hash tells torch's cache on disk which plan the code was compiled for.
        self._contexts.cache_hash = hash_plan(plan)  # type: ignore[attr-defined]
        self.warned = False
        self._breaks: dict[str, int] = {}  # dynamo's graph breaks before the model's forward was traced
        self._break = ""  # the first that was found in it

    @left_to_python
    def run(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Runs the forward where dynamo has skipped the caller's frame and compiles the frames that it calls.

        Args:
            forward: the model's.
            args, kwargs: what it is called with.
        """
        run = _prepare(self)
        outer = note_given((args, kwargs))
        try:
            return run(self.trace, (forward, args, kwargs), {})
        finally:
            note_given(outer)

    @left_to_python
    def trace(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Runs the forward where dynamo traces the caller, so that ``torch.compiler.is_compiling()``.

        Args:
            forward: the model's.
            args, kwargs: what it is called with.
        """
        if not torch.compiler.is_compiling():  # dynamo did not trace the call, and has left it to Python
            return _run_in_parts(self, forward, args, kwargs)
        if not self.is_training() or _is_exporting():
            return forward(*args, **kwargs)
        _quieten()

        def region() -> Any:
            return forward(*args, **kwargs)

        return checkpoint(region, use_reentrant=False, context_fn=self._contexts)

    def why_not_one_graph(self) -> str:
        """Return why dynamo did not make one graph of the forward, as far as it says."""
        found = [reason for reason, count in _graph_breaks().items() if count > self._breaks.get(reason, 0)]
        self._break = self._break or next(iter(found), "")  # a later forward is not traced
        if not self._break and is_mostly_compiled(self._model()):
            return (
                "the compiled parts of the model ran in eager mode, as under torch.compiler.set_stance, inside of "
                "torch.utils.checkpoint, or past torch's limit of recompilations"
            )
        if not self._break:
            return (
                "torch reports no graph break, but may have reached its limit of recompilations "
                "(TORCH_LOGS=recompiles shows that)"
            )
        lines = [line.strip().removeprefix("Explanation: ").rstrip(".") for line in self._break.splitlines()[:2]]
        return f"the forward has a graph break, {': '.join(lines)} (TORCH_LOGS=graph_breaks shows where)"

    def is_training(self) -> bool:
        """Whether this is a training forward, which follows the plan."""
        return self._model().training and torch.is_grad_enabled()


Frame = Callable[[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]], Any]

_frames: WeakKeyDictionary[Compiled, tuple[Frame, Frame]] = WeakKeyDictionary()


def _get_frames(compiled: Compiled) -> tuple[Frame, Frame]:
    """The frames that dynamo compiles for a model: one with its plan, one without."""
    found = _frames.get(compiled)
    if found is None:
        found = _frames[compiled] = own_frame(), own_frame()
    return found


@left_to_python_with_callees
def _prepare(compiled: Compiled) -> Frame:
    """Notes the graph breaks before a forward. Returns the frame that dynamo compiles with the plan."""
    if not compiled.warned:
        compiled._breaks = _graph_breaks()
    return _get_frames(compiled)[0]


@left_to_python
def _run_in_parts(
    compiled: Compiled, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Runs a forward that is not one graph, with each of its graphs divided by its share of the plan."""
    _, run = without_dynamo(_get_frames)(compiled)
    outer = without_dynamo(divide_parts)(None)
    try:
        without_dynamo(_divide)(compiled)
        result = run(forward, args, kwargs)
    finally:
        without_dynamo(divide_parts)(outer)
    without_dynamo(_check_parts)(compiled)
    return result


def _divide(compiled: Compiled) -> None:
    # Without a session nothing tells which of the graphs have run, and how often.
    if compiled.is_training() and runs_here() is not None:
        divide_parts(compiled.plan)


def _check_parts(compiled: Compiled) -> None:
    """Checks the graphs that have run against the budget; warns or raises if torch has divided them alone."""
    runs = runs_here()
    if not compiled.is_training():
        return
    found = None if runs is None else runs.find_joint()
    if runs is None or found is None:
        _drop_plan(compiled)
    else:
        loss = _find_loss(compiled.plan)
        eager = max(0, runs.count_eager() - sum(one.held for one in loss))  # which eager code stores, too
        require_together(compiled.plan, found, [*loss, JointPlan(0, eager, eager)])


def _find_loss(plan: Plan) -> list[JointPlan]:
    """What a loss in chunks takes, which runs in Python behind a graph break."""
    graph = plan.graph
    number = chunk_op(graph)
    if number is None:
        return []
    op = graph.ops[number]
    made = [graph.values[value].nbytes for value in op.makes]
    if len(made) == len(op.shapes) and not graph.accumulates:
        made = made[:2]  # the losses and the input's gradient; those of parameters are in no activation peak
    return [JointPlan(0, sum(made) + op.scratch, sum(made))]


def _drop_plan(compiled: Compiled) -> None:
    """Warns of a forward that torch alone has divided, once; raises, each time, if its plan has a memory budget, and no
    fallback."""
    message = (
        f"the plan of {compiled.plan.model} is not followed under torch.compile, which chooses the saved tensors "
        f"itself: {compiled.why_not_one_graph()}. A plan needs the forward in one graph, or a model of "
        f"compress_model and the inductor backend. Change one of these, or {RUN_EAGER}"
    )
    if has_promise(compiled.plan):
        refuse(f"{message}, or pass fallback='least' to compress_model, to continue without the plan")
    if not compiled.warned:
        compiled.warned = True
        warn(message)


def _graph_breaks() -> dict[str, int]:
    """Return the reasons of all graph breaks so far, with how often dynamo met each."""
    counters = dynamo_counters()
    return {} if counters is None else dict(counters["graph_break"])


def _contexts(plan: Plan) -> tuple[TorchDispatchMode, TorchDispatchMode]:
    """The modes in which ``torch.utils.checkpoint`` runs a forward and its repetition. The repetition never comes."""
    from integrations.runtime.compiled.tagging import Tagging

    return Tagging(plan), Tagging(plan)


@constant_when_traced
def _is_exporting() -> bool:
    """``torch.compiler.is_exporting()``, asked in Python: up to torch 2.11 dynamo traces it as true."""
    return torch.compiler.is_exporting()


@constant_when_traced
def _quieten() -> None:
    """Silences torch's warning of in-place operators in a checkpoint, which ``Tagging`` can handle. Called while dynamo
    traces."""
    log = logging.getLogger(WRAP)
    if not any(isinstance(known, _Quiet) for known in log.filters):
        log.addFilter(_Quiet())


class _Quiet(logging.Filter):
    """Drops log records about a region whose contexts are ``_contexts``."""

    def filter(self, record: logging.LogRecord) -> bool:
        frame = sys._getframe() if "context_fn" in record.getMessage() else None
        while frame is not None:
            contexts = frame.f_locals.get("context_fn")
            if isinstance(contexts, functools.partial) and contexts.func is _contexts:
                return False
            frame = frame.f_back
        return True
