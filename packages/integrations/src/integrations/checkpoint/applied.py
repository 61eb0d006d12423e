"""``apply`` and ``restore_model``: a model whose training forward follows a plan, in place."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar, get_args

import torch
from torch import nn

from actcore import Codec
from integrations.checkpoint.capturing.capture import is_capturing
from integrations.checkpoint.compiled.forward import Compiled
from integrations.checkpoint.execution.following import following, runs_transformed
from integrations.checkpoint.execution.keeping import Coding
from integrations.checkpoint.graphs.fingerprint import fingerprint
from integrations.checkpoint.graphs.sharding import class_of
from integrations.checkpoint.planning.plan import Plan
from integrations.checkpoint.planning.plans import Plans, Shapes
from integrations.compiling import compiled_module, compiles_callees, left_to_python, without_dynamo
from integrations.stand_in import ForwardStandIn
from integrations.warn import warn

Model = TypeVar("Model", bound=nn.Module)


def apply(model: Model, plan: Plan, *, shapes: Shapes = "replan", codec: Codec | None = None) -> Model:
    """Has the model's training forward keep what the plan keeps, and backward compute the rest again; in place.

    The training loop stays as it is. Gradients, buffers and generators come out as those of the model itself, bit for
    bit where its operators are deterministic. Weights, hooks, ``state_dict`` keys and the class stay; ``eval()``,
    ``no_grad`` and ``inference_mode`` are not affected; ``restore_model`` undoes it. Apply it to the module that
    DistributedDataParallel wraps, before or after it does.

    Args:
        model: the one that the plan was made for, or another of the same modules and shapes.
        plan: what ``plan`` returned, or was loaded.
        shapes: what to do with inputs of other shapes. Those that are no larger than planned ones follow their plan,
            in the proportion of their sizes. For others, or under another autocast, ``"replan"`` makes a plan with
            the same budget, in the time of a capture; ``"refuse"`` raises.
        codec: stores what the plan keeps, such as ``actcore.GroupAffine(bits=8)``; ``None`` keeps it as it is. The
            activations among it: floating-point tensors of 1 KiB and more through which gradients flow, results of a
            ReLU too, of which backward asks the sign, but not those that a mask was added to. What is computed again
            follows from the stored ones, so gradients are no longer those of the model bit for bit. Each forward rounds
            with noise of its own. ``compress_model(checkpoint=plan)`` stores what is computed again, too, and lets the
            operator decide how.

    Returns:
        The same object.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: the plan is of another model, or the model or a part of it has one already, or is compressed.
    """
    model_inside = _require(model, plan)
    if shapes not in get_args(Shapes):
        raise ValueError(f"shapes must be 'replan' or 'refuse', got {shapes!r}")
    if CheckpointedForward.of(model_inside) is not None:
        raise ValueError(
            f"{type(model_inside).__name__} has a plan already; call integrations.checkpoint.restore_model(model) first"
        )
    ForwardStandIn.require_none(model_inside, "compress_model(model, checkpoint=plan) does both")
    own, coding = "forward" in model_inside.__dict__, None if codec is None else Coding(codec)
    CheckpointedForward(model_inside, model_inside.forward, own, Plans(plan, shapes), coding).put()
    return model


def restore_model(model: Model) -> Model:
    """Undoes ``apply`` and returns the same object.

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: ``apply`` has not given it a plan.
    """
    inner = _module(model)
    found = CheckpointedForward.of(inner)
    if found is None:
        others = [one for one in ForwardStandIn.all_of(inner) if one.keeps]
        way_out = "call integrations.checkpoint.apply(model, plan) first"
        if others:
            way_out = f"it is {others[0].what}, which {others[0].undo} undoes"
        raise ValueError(f"{class_of(inner).__name__} has no plan; {way_out}")
    found.take_out()
    return model


def plan_of(model: nn.Module) -> Plan:
    """The plan that the model's last training forward followed; before the first one, the plan that was applied.

    Args:
        model: one that ``apply`` was given, or ``compress_model(checkpoint=...)``.

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: it has no plan, or is compressed and has none before its first training forward.
    """
    inner = _module(model)
    stand_ins = list(ForwardStandIn.all_of(inner))
    plan = next((one.plan for one in stand_ins if one.plan is not None), None)
    if plan is not None:
        return plan
    if any(one.plans_later for one in stand_ins):
        raise ValueError(f"{class_of(inner).__name__} has no plan yet: its first training forward makes one")
    raise ValueError(
        f"{class_of(inner).__name__} has no plan; call integrations.checkpoint.apply(model, plan) first, or "
        "integrations.compress_model(model, checkpoint='optimal')"
    )


def _module(model: nn.Module) -> nn.Module:
    """The module inside, if it is compiled by torch."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    return compiled_module(model)


def _require(model: nn.Module, plan: Plan) -> nn.Module:
    model = _module(model)
    if not isinstance(plan, Plan):
        raise TypeError(f"plan must be a Plan of integrations.checkpoint.plan, got {type(plan).__name__}")
    found = fingerprint(model)
    if found != plan.graph.fingerprint:
        raise ValueError(
            f"plan must be of this model: it was made for a {plan.model} whose modules or parameters' shapes differ "
            f"from those of this {class_of(model).__name__}; make one with integrations.checkpoint.plan(model, inputs)"
        )
    return model


class CheckpointedForward(ForwardStandIn):
    """Stands in a model's ``forward``: the original, which follows a plan.

    Attributes:
        plans: the plan that was applied, and those made since for other inputs.
        coding: stores what they keep; ``None`` where it is kept as it is.
        told: whether it was said that compiled code does without it.
    """

    what = "checkpointed"
    undo = "integrations.checkpoint.restore_model(model)"
    keeps = True

    def __init__(
        self, model: nn.Module, forward: Callable[..., Any], replaced: bool, plans: Plans, coding: Coding | None = None
    ) -> None:
        super().__init__(model, forward, replaced)
        self.plans = plans
        self.coding = coding
        self.told = False
        self.compiled = Compiled(model, plans.last)

    @property
    def plan(self) -> Plan:
        """The one that was followed last."""
        return self.plans.followed

    @left_to_python
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.compiled.trace(self.forward, args, kwargs)
        if compiles_callees():
            return _run_compiled(self, sys._getframe(), args, kwargs)
        if torch._C._get_tracing_state() is not None or is_capturing():
            return self.forward(*args, **kwargs)
        if not self.model.training or not torch.is_grad_enabled() or runs_transformed():
            return self.forward(*args, **kwargs)
        copy = self.copy_of(sys._getframe())
        if copy is not None:
            return copy(*args, **kwargs)
        followed = self.plans.plan_for(self.model, args, kwargs)
        if followed is None:
            result = self.forward(*args, **kwargs)
        else:
            keeping = None if self.coding is None else self.coding.begin(followed.plan.graph)
            with following(followed.schedule, self.model, keeping) as tape:
                result = self.forward(*args, **kwargs)
            if tape.astray:
                self.plans.note_astray(followed, tape.astray)
        self.plans.note_returned()
        return result

    def copy_of(self, frame: FrameType) -> Callable[..., Any] | None:
        """The plain forward of a shallow copy, which has parameters of its own, if that was called in ``frame``."""
        module = self.shallow_copy(frame)
        if module is None:
            return None
        warn(
            f"a shallow copy of the checkpointed {type(module).__name__} (copy.copy, nn.DataParallel) keeps "
            "everything; use copy.deepcopy, or DistributedDataParallel"
        )
        return functools.partial(type(module).forward, module)


@left_to_python
def _run_compiled(forward: CheckpointedForward, frame: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """With dynamo off but for the model's own forward."""
    copy = without_dynamo(_copy_of)(forward, frame)
    if copy is not None:
        return copy(*args, **kwargs)
    return forward.compiled.run(forward.forward, args, kwargs)


def _copy_of(forward: CheckpointedForward, frame: FrameType) -> Callable[..., Any] | None:
    if forward.coding is not None and not forward.told:
        forward.told = True
        warn(
            f"{type(forward.model).__name__} is compiled by torch, which keeps what its plan keeps as it is: codec "
            "stores nothing there; leave it out, or do not compile the model"
        )
    return forward.copy_of(frame)
