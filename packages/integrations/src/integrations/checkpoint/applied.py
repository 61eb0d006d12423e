"""``apply`` and ``restore_model``: a model whose training forward follows a plan, in place."""

from __future__ import annotations

from typing import TypeVar, get_args

from torch import nn

from actcore import Codec
from integrations._utils.compiling import compiled_module
from integrations._utils.forward_wrapper import ForwardWrapper
from integrations.api import compress
from integrations.api.handle.compression import Compression
from integrations.api.handle.forward import CompressedForward
from integrations.api.handle.plan_arguments import require_same_model, require_this_torch
from integrations.api.handle.plan_manager import PlanManager
from integrations.capture.graphs.sharding import get_class
from integrations.planner.plan import Plan
from integrations.planner.plans import Shapes

Model = TypeVar("Model", bound=nn.Module)


def apply(model: Model, plan: Plan, *, shapes: Shapes = "replan", codec: Codec | None = None) -> Model:
    """Have a model's training forward keep the plan's tensors, and backward recompute the others, in place.

    The training loop stays unchanged. Gradients, buffers and generators are those of the model itself, bit for bit if
    its operators are deterministic. Weights, hooks, ``state_dict`` keys and the class stay. ``eval()``, ``no_grad`` and
    ``inference_mode`` are not affected. ``restore_model`` undoes it. Apply the plan to the module that
    DistributedDataParallel wraps, before or after wrapping. ``integrations.compression(model).report()`` lists the kept
    and the recomputed tensors. A part of a model may have its own plan, handle and report.

    Args:
        model: the model that the plan was made for, or another with the same modules and shapes.
        plan: a plan that ``plan`` returned, or that was loaded.
        shapes: how to treat inputs of other shapes. Inputs that are no larger than planned ones follow their plan, in
            proportion to their sizes. For others, or under another autocast, ``"replan"`` makes a new plan with the
            same budget, in the time of a capture; ``"refuse"`` raises.
        codec: the codec that stores the kept tensors, such as ``actcore.GroupAffine(bits=8)``; ``None`` keeps them
            exactly. It stores the tensors that a level would round (``docs/reference/operators.md``). Tensors of which
            backward only needs signs, masks or indices are stored exactly, in the fewest bits; others are kept. For
            inputs of norms that normalize rows, each group of a ``GroupAffine`` is within one row, whatever its size.
            Recomputed tensors follow from the stored values, so gradients are no longer bit for bit those of the model.
            Each forward rounds with its own noise. ``compress_model(checkpoint=plan)`` also stores recomputed tensors.

    Returns:
        The same object.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: the plan is of another model; or the model or a part of it already has a plan or is compressed.
    """
    inner = _require(model, plan)
    if shapes not in get_args(Shapes):
        raise ValueError(f"shapes must be 'replan' or 'refuse', got {shapes!r}")
    if codec is not None and (not isinstance(codec, Codec) or isinstance(codec, type)):
        raise TypeError(f"codec must be a codec, such as actcore.GroupAffine(bits=8), got {codec!r}")
    found = CompressedForward.of(inner)
    if found is not None and found.handle._plan_manager is not None:
        raise ValueError(
            f"{type(inner).__name__} has a plan already; call integrations.checkpoint.restore_model(model) first"
        )
    ForwardWrapper.require_none(inner, "compress_model(model, checkpoint=plan) does both")
    handle = compress.new_handle(Compression, inner, "L0", False, {})
    handle._plan_manager = PlanManager(inner, plan, handle.level, shapes, codec)
    compress.attach(handle)
    return model


def restore_model(model: Model) -> Model:
    """Undo ``apply`` and return the same object, as ``integrations.restore_model`` does. A model without a plan is
    returned unchanged.

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: the model has a plan and a level; or it has no plan, but it or a module in it is compressed.
    """
    inner = _module(model)
    found = CompressedForward.of(inner)
    if found is None or found.handle._plan_manager is None or not found.handle.level.off:
        others = [one for one in ForwardWrapper.all_of(inner) if one.keeps]
        if others:
            raise ValueError(
                f"{get_class(inner).__name__} has no plan; it is {others[0].what}: call {others[0].undo} instead"
            )
    return compress.restore_model(model)


def plan_of(model: nn.Module) -> Plan:
    """The plan that the model's last training forward followed; before the first one, the plan that was applied.

    Args:
        model: one that ``apply`` was given, or ``compress_model`` with a plan to follow.

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: it has no plan, or has none before its first training forward.
    """
    inner = _module(model)
    found = CompressedForward.of(inner)
    manager = None if found is None else found.handle._plan_manager
    if manager is None:
        raise ValueError(
            f"{get_class(inner).__name__} has no plan; call integrations.checkpoint.apply(model, plan) first, or "
            "integrations.compress_model(model, checkpoint='optimal')"
        )
    if manager.plan is None:
        raise ValueError(f"{get_class(inner).__name__} has no plan yet: its first training forward makes one")
    return manager.plan


def _module(model: nn.Module) -> nn.Module:
    """The module itself, or the inner one of a module compiled by torch."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    return compiled_module(model)


def _require(model: nn.Module, plan: Plan) -> nn.Module:
    model = _module(model)
    if not isinstance(plan, Plan):
        raise TypeError(f"plan must be a Plan of integrations.checkpoint.plan, got {type(plan).__name__}")
    require_this_torch(plan)
    require_same_model(plan, model)
    return model
