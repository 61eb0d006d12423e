"""``CompressedForward``: replaces a compressed model's ``forward``.

Under ``torch.compile``, hooks that a frame sets are not part of its graph. So dynamo leaves the frame of
``CompressedForward`` to Python, which opens a session, has the model's own forward compiled under it, and closes it.
Where dynamo traces a function around the model, it breaks the graph at the model's call, which then runs as above. With
``fullgraph=True`` it may not: a plan that stores nothing in other forms is followed inside of the graph, without a
session, and everything else raises. ``torch.export`` sees the plain model.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch

from integrations._utils.compiling import (
    compiles_callees,
    compiles_with_inductor,
    is_mostly_compiled,
    left_to_python,
    left_to_python_with_callees,
    may_break_graph,
    not_inlined,
    own_frame,
    skips_frames,
    traces_backward,
    without_dynamo,
)
from integrations._utils.forward_wrapper import ForwardWrapper
from integrations._utils.torch_internals import constant_when_traced, get_tracing_state
from integrations._utils.warn import warn
from integrations.api.handle.compression import Compression
from integrations.api.handle.handle_state import HandleState, find_handle
from integrations.api.handle.never_compressed_warning import await_no_longer
from integrations.api.handle.retry_with_less import explain_shortage
from integrations.api.handle.running_session import RunningSession
from integrations.planner.errors import BudgetError, PlanningError, for_user
from integrations.planner.plan import Plan
from integrations.runtime.compiled.forward import Compiled
from integrations.runtime.compiled.joint_plans import take_failure
from integrations.runtime.compiled.partition import can_divide


class CompressedForward(ForwardWrapper):
    """A model's ``forward`` under compression."""

    what = "compressed"
    undo = "integrations.restore_model(model)"
    keeps = True

    def __init__(self, handle: Compression, forward: Callable[..., Any], replaced: bool) -> None:
        super().__init__(handle.model, forward, replaced)
        self.handle = handle

    @property
    def _compiled(self) -> Compiled | None:
        """The model's compiled forward with a plan, if that needs no session."""
        handle = self.handle
        return None if handle.closed or handle._plan_manager is None else handle._plan_manager.compiled

    @property
    def _inside(self) -> Compiled:
        """The model's compiled forward in a function that is one graph, which ``_breaks_graph`` has found."""
        assert self.handle._plan_manager is not None
        assert self.handle._plan_manager.inside is not None
        return self.handle._plan_manager.inside

    def _runs_in_compiled_parts(self) -> bool:
        """Whether the model has a plan that the compiled parts of its forward follow, as the graphs of one that
        breaks."""
        handle = self.handle
        manager = handle._plan_manager
        if manager is None or manager.codec is not None or not handle.level.off or not handle.active:
            return False
        return is_mostly_compiled(handle.model) and get_tracing_state() is None and can_divide()

    @left_to_python
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            alone = self._compiled
            if alone is not None:
                if self.handle._plan_manager is not None and self.handle._plan_manager.codec is not None:
                    _told_of_codec(self.handle._key)
                if alone.is_training():
                    _require_backward_outside(self.handle._key)
                return alone.trace(self.forward, args, kwargs)
            if not self.handle.active or _exports_plain_model(self.handle._key):
                return self.forward(*args, **kwargs)
            if _breaks_graph(self.handle._key):
                return _apart(self, args, kwargs)
            return self._inside.trace(self.forward, args, kwargs)
        try:
            if compiles_callees() or self._runs_in_compiled_parts():
                return _run_compiled(self, sys._getframe(), args, kwargs)
            if get_tracing_state() is not None:
                return self.forward(*args, **kwargs)
            copy = self.find_copy(sys._getframe())
            if copy is not None:
                return copy(*args, **kwargs)
            return self.handle.run(self.forward, args, kwargs)
        except PlanningError as error:
            failure = for_user(error)
        raise failure  # out here, so that it has neither the frames nor the context of the error that it is made of

    def find_copy(self, frame: FrameType) -> Callable[..., Any] | None:
        """The plain forward of a shallow copy of the model, if the copy was called in ``frame``. The handle does not
        know its parameters."""
        module = self.shallow_copy(frame)
        if module is None:
            return None
        warn(
            f"a shallow copy of the compressed {type(module).__name__} (copy.copy, nn.DataParallel) runs uncompressed; "
            "use copy.deepcopy, or DistributedDataParallel"
        )
        return functools.partial(type(module).forward, module)


# ---- under torch.compile ----

Frame = Callable[..., Any]

_frames: WeakKeyDictionary[CompressedForward, Frame] = WeakKeyDictionary()
# One for each plan that was followed.
_planned: WeakKeyDictionary[CompressedForward, list[Compiled]] = WeakKeyDictionary()


@not_inlined
def _apart(forward: CompressedForward, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Breaks the graph where dynamo traces a function around the model, so that the caller runs in Python."""
    return forward(*args, **kwargs)


@left_to_python
def _run_compiled(
    forward: CompressedForward, frame: FrameType, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Opens and closes the session with dynamo off; between, dynamo compiles the model's own forward."""
    opened: list[RunningSession] = []  # filled before the session is entered: an interrupt may come at any time
    try:
        run, function = _open(opened, forward, frame, args, kwargs)
        result = run(function, args, kwargs)
        if opened:
            _close(forward, opened[0], args, kwargs, result)
    except BaseException as error:
        failure = without_dynamo(_give_up)(forward, opened, error)
        if failure is None:
            raise
        raise failure from None
    return result


@left_to_python_with_callees  # takes less time than ``without_dynamo``, whose wrapper dynamo also compiled as a frame
def _open(
    opened: list[RunningSession],
    forward: CompressedForward,
    frame: FrameType,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> tuple[Frame, Callable[..., Any]]:
    """Enters the session of a forward and adds it to ``opened``, if there is one. Returns the frame that dynamo
    compiles, and what that is to call."""
    session, run, function = _prepared(forward, frame, args, kwargs)
    take_failure(None)
    if session is not None:
        opened.append(session)
        session.__enter__()
        session.add_inputs(args, kwargs)
    return run, function


def _prepared(
    forward: CompressedForward, frame: FrameType, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[RunningSession | None, Frame, Callable[..., Any]]:
    """The session to open, the frame that dynamo compiles, and what that is to call."""
    run = _frames.get(forward)
    if run is None:
        run = _frames[forward] = own_frame()
    copy = forward.find_copy(frame)
    if copy is not None:
        return None, run, copy
    if forward._compiled is not None:
        _tell_of_codec(forward.handle)
        return None, forward._compiled.run, forward.bind()
    session = forward.handle.session_of_forward(args, kwargs, compiled=True)
    if session is None or session.plan is None:
        return session, run, forward.bind()
    _tell_of_codec(forward.handle)
    return session, _compiled_for(forward, session.plan).run, forward.bind()


@left_to_python_with_callees
def _close(
    forward: CompressedForward, session: RunningSession, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
) -> None:
    session.__exit__(None, None, None)
    forward.handle.note_returned(session, args, kwargs, result)


def _give_up(forward: CompressedForward, opened: list[RunningSession], error: BaseException) -> BudgetError | None:
    """Leaves the session of a forward that has raised, if there is one. Returns the error for which a graph was not
    divided, if torch has wrapped it in this one."""
    for session in opened:
        session.abandon()
        explain_shortage(forward.handle, session, error, "torch compiles it")
    return take_failure(error)


@constant_when_traced
def _told_of_codec(key: str) -> bool:
    """``_tell_of_codec`` while dynamo traces."""
    handle = find_handle(key)
    if handle is not None:
        _tell_of_codec(handle)
    return True


def _tell_of_codec(handle: HandleState) -> None:
    if handle._plan_manager is not None and handle._plan_manager.codec is not None:
        handle.warn_once(
            "codec",
            f"{type(handle.model).__name__} is compiled by torch, where codec has no effect: compiled code keeps the "
            "plan's tensors exactly. Leave codec out, or do not compile the model",
        )


def _compiled_for(forward: CompressedForward, plan: Plan) -> Compiled:
    """The model's compiled forward for a plan. Forwards that follow the same plan share it."""
    known = _planned.setdefault(forward, [])
    found = next((one for one in known if one.asked is plan), None)
    if found is None:
        plans = forward.handle._plan_manager
        found = Compiled(forward.model, plan, plans is not None and plans.bounds.falls_back)
        known.append(found)
    return found


@constant_when_traced
def _exports_plain_model(key: str) -> bool:
    """Return whether ``torch.export`` traces the model, and warn if so: the export runs uncompressed."""
    if not torch.compiler.is_exporting():
        return False
    handle = find_handle(key)
    if handle is not None:
        name = type(handle.model).__name__
        handle.warn_once("exported", f"{name} runs uncompressed once exported; export it in eval() mode")
    return True


@constant_when_traced
def _breaks_graph(key: str) -> bool:
    """Return whether dynamo is to break the graph that it is tracing. If it must not, note the plan that the model
    follows inside of the graph. Dynamo calls this while it traces, and the result is a constant of the compiled code.

    Raises:
        ValueError: dynamo must not break the graph, and the model cannot be compressed inside of it. Dynamo wraps this
            error into its own.
    """
    if may_break_graph():
        return True
    handle = find_handle(key)
    assert handle is not None  # its forward is running
    manager, why = handle._plan_manager, _why_not_inside(handle)
    if manager is None or manager.plans is None or why:
        raise ValueError(_cannot_be_inside(handle, why))
    await_no_longer(handle)
    # The graph is the same in all states of the gradients. A plan for steps that add to them fits the others, too.
    plan = manager.plans.last.accumulating if manager.plans.last.is_bounded else manager.plans.followed
    if manager.inside is None or manager.inside.asked is not plan:
        manager.inside = Compiled(handle.model, plan, manager.bounds.falls_back)
    return False


@constant_when_traced
def _require_backward_outside(key: str) -> bool:
    """Raises ``ValueError`` if dynamo puts backward into the graph that it is tracing, which nothing divides then."""
    handle = find_handle(key)
    if handle is not None and traces_backward():
        raise ValueError(_cannot_be_inside(handle, _BACKWARD_INSIDE))
    return True


_BACKWARD_INSIDE = (
    "with torch._dynamo.config.trace_autograd_ops, backward is part of that graph, which keeps all saved tensors"
)


def _cannot_be_inside(handle: HandleState, why: str) -> str:
    return (
        f"{handle.name} cannot be compressed inside of a function that is compiled with fullgraph=True: {why}. Compile "
        "the model itself, torch.compile(model, fullgraph=True), or the function without fullgraph=True; "
        "integrations.restore_model(model) trains without compression"
    )


def _why_not_inside(handle: HandleState) -> str:
    """Return why a model cannot be compressed inside of another graph, in words; empty if it can."""
    manager = handle._plan_manager
    hooks = "torch cannot set saved-tensor hooks in the middle of a graph"
    if not skips_frames():
        return "this version of torch cannot break the graph at the model's call"
    if manager is None or not handle.level.off:
        return hooks
    if traces_backward():
        return _BACKWARD_INSIDE
    if manager.plans is None:
        return (
            "its plan is made in its first training forward, which has not run yet; run a training forward before "
            "the function"
        )
    plan = manager.plans.followed
    if plan.compressed or plan.choice.rounds or (plan.choice.stores and not compiles_with_inductor()):
        return hooks
    return ""
