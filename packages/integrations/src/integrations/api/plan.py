"""``plan`` and ``apply``: one plan for every value that backward reads, made before the training and given to a
model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar

from torch import nn

from integrations._utils.progress import shows_planning
from integrations.api.compress import compress_model
from integrations.api.error_control.error_model import ErrorModel
from integrations.api.error_control.gradient_errors import GradientErrors, measured_errors
from integrations.api.error_control.plan_within_bounds import chosen, measured
from integrations.api.handle.conversion_arguments import read_loss
from integrations.api.handle.plan_arguments import Given
from integrations.capture.loss import Loss, require_loss
from integrations.losses.head import asked_head, computing_loss, find_head, path_of_head
from integrations.planner.bounds import FULL, Bounds
from integrations.planner.budget import Budget, read_fraction, resolve_bytes
from integrations.planner.errors import BudgetError, raising_for_user
from integrations.planner.free_memory import resolved
from integrations.planner.loss_choice import first_plan, with_better_loss
from integrations.planner.plan import Plan
from integrations.planner.plan_recomputation import plannable
from integrations.planner.plan_with_stores import planned, rating_for
from integrations.planner.planning_failures import planning
from integrations.policies.levels import LEVELS

Model = TypeVar("Model", bound=nn.Module)


@raising_for_user
@shows_planning
def plan(
    model: nn.Module,
    args: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    memory: Budget | None = None,
    time: float | None = None,
    error: float | None = None,
    stores: Iterable[str] | None = None,
    measure: bool = True,
    real: bool = False,
    criterion: Loss | None = None,
    loss: Loss | Literal["full", "chunked"] | Mapping[str, str] | None = None,
    holds_outputs: bool | None = None,
    in_flight: int | None = None,
) -> Plan:
    """Choose how to store each tensor that backward reads: keep it, store it exactly in fewer bits, recompute it, send
    it to host memory, or, with ``error``, round it.

    ::

        plan = integrations.plan(model, (images,), memory="8GiB")
        print(plan)  # how each module's values are stored, why, and the cost
        integrations.apply(model, plan)
        ...train as before...

    ``compress_model(model, memory="8GiB")`` does both, during the first training forward. Unconstrained
    quantities are minimized: the time within ``memory``, the memory within ``time``, the memory if neither is given. If
    ``memory``, ``time`` and ``error`` are all given, the plan has the least error that was found within them.

    The model's forward runs on fake tensors, which have no data and take no memory. The steps that ``measure`` runs use
    real tensors, on aliases of the parameters. Random generators, parameters, gradients and buffers are unchanged
    afterwards.

    Each rank that calls this gets its own plan, from the speed of its machine and its own measurements. For one plan on
    all ranks, make the plan on one, call ``plan.save(path)``, and call ``compress_model(model, plan=path)`` on each.
    ``compress_model(model, memory=...)`` under DistributedDataParallel makes one plan for all ranks.

    Args:
        model: the model, in training mode and not wrapped: pass the module inside of DistributedDataParallel.
        args: the arguments of its forward, as in training: a tuple, a mapping by name, or the only argument. A list has
            several inputs, each in one of these forms: the plan keeps to the bounds with all of them, and a fraction is
            relative to the largest plain step. (If the model's only argument is a list, pass it in a tuple.)
        kwargs: further arguments by name, for every input.
        memory, time, error, stores: as for ``compress_model``.
        measure: whether to measure the plan's error, within the plan's memory: two steps for each of at most three
            plans that are tried. Nothing is measured if the plan rounds nothing, as without ``error``. Without
            ``measure``, the error is estimated from the operators; so it is for inputs without data, and for models
            that communicate with other ranks.
        real, holds_outputs: as for ``integrations.checkpoint.plan``.
        in_flight: as for ``compress_model``, but ``None`` is 1. A plan for several forwards counts gradients to which
            backward adds: ``plan.accumulating`` is the plan itself.
        criterion: as for ``integrations.checkpoint.plan``. A plan computes its loss in chunks only if ``loss`` asks for
            that.
        loss: as for ``compress_model``. ``"chunked"`` or ``{"head": "lm_head"}``: the plan never makes the logits, and
            ``plan.chunked`` has the details. If the training loop computes the loss, pass it as ``criterion``;
            otherwise one cross-entropy of all rows is counted. ``"full"``: the plan makes whole logits. By default, a
            plan within ``memory`` may choose the chunks if the model returns its loss. A function is taken as
            ``criterion``.

    Returns:
        The plan. For several inputs, the plan of the input whose plain step takes the most memory, with the plans of
        the others as ``plan.also``.

    Raises:
        TypeError: an argument has the wrong type, or ``criterion`` returned no tensor.
        ValueError: an argument is out of range; the model is not in training mode, or none of its outputs requires a
            gradient; no plan can be made, and the message names the cause and the alternatives; or no plan keeps to the
            bounds, and the message names the lowest possible bound, and ways to lower it.
        Exception: what the model raises with these inputs.
    """
    if callable(loss):
        if criterion is not None:
            raise TypeError("loss is the older name of criterion, got both; pass criterion alone")
        criterion, loss = loss, None
    require_loss(criterion)
    model = plannable(model)
    head = _asked_head(model, loss)
    full = loss == FULL or (criterion is not None and head is None)
    bounds = Bounds.given(memory, time, error, stores, loss=FULL if full else None, in_flight=in_flight)
    if isinstance(args, list) and not args:
        raise ValueError("args must be one input, or several in a list, got an empty list")
    calls = [_call(one, kwargs) for one in (args if isinstance(args, list) else [args])]
    level = LEVELS["L0"]
    how: dict[str, Any] = {"real": real, "loss": criterion, "holds_outputs": holds_outputs}
    errors = ErrorModel(model, bounds.error) if bounds.error else None
    how |= {"rating": rating_for(bounds), **ErrorModel.weighing(model, errors)}

    def front(number: int) -> Plan:
        given, named = calls[number]
        with planning(model, given, named, criterion):
            return planned(model, level, given, named, bounds, **how)

    fronts = [first_plan(model, partial(front, number), head) for number in range(len(calls))]
    if head is not None and any(front.chunked is None for front in fronts):
        raise ValueError(
            f"loss must be 'full' or None for this {type(model).__name__}, got {loss!r}: its step needs the logits of "
            f"{head} themselves, or computes no loss of them"
        )
    if memory is not None and read_fraction(memory) is not None and len(fronts) > 1:
        bounds = replace(bounds, memory=resolve_bytes(memory, max(front.plain_peak for front in fronts)))
    memory, free = resolved(bounds.memory, model, calls)
    bounds = replace(bounds, memory=memory)
    found = []
    try:
        for number in _leading(fronts):
            better = with_better_loss(model, partial(front, number), bounds, fronts[number], head)
            with computing_loss(model, better.head):
                made = chosen(better, bounds, errors)
                if measure and errors is not None:
                    made = measured(made, bounds, errors, partial(_measured, model, calls[number], criterion))
            found.append(made)
    except BudgetError as error:
        if free is not None:
            error.add_note(f"memory={free}.")
        raise
    found.sort(key=lambda plan: plan.plain_peak, reverse=True)
    return found[0].with_also(found[1:])


def _asked_head(model: nn.Module, loss: str | Mapping[str, str] | None) -> str | None:
    """Return the path of the layer whose logits ``loss=`` asks not to make; ``None`` if it does not ask for that.

    Raises:
        ValueError: there is no such layer, or the model was compressed with another loss.
    """
    wanted = read_loss(loss)
    layer = None if wanted is None else find_head(model, **wanted)
    compressed = asked_head(model)
    if loss is not None and compressed is not None and layer is not model.get_submodule(compressed):
        raise ValueError(
            f"loss must be None or {{'head': {compressed!r}}} for this {type(model).__name__}, which was compressed "
            f"with that loss, got {loss!r}: call integrations.restore_model(model) before you plan for another loss"
        )
    if wanted is None:
        return None
    path: str = wanted["head"] if wanted else path_of_head(model)
    return path


def _measured(model: nn.Module, call: tuple[Any, dict[str, Any]], loss: Loss | None, plan: Plan) -> GradientErrors:
    """Return the measured errors of a plan."""
    return measured_errors(model, *call, plan, loss)


def _leading(fronts: list[Plan]) -> list[int]:
    """The inputs that are not within others."""
    inputs = [front.graph.inputs for front in fronts]
    return [
        number
        for number, one in enumerate(inputs)
        if not any(
            one.within(other) and (place < number or one != other)
            for place, other in enumerate(inputs)
            if place != number
        )
    ]


def apply(model: Model, plan: Given) -> Model:
    """Have a model's training forward follow a plan, in place, as ``compress_model(model, plan=plan)`` does.

    Args:
        model: the model that the plan was made for, or another with the same modules and shapes.
        plan: a plan of ``integrations.plan``, ``integrations.checkpoint.plan`` or ``handle.plan``, or the path of its
            file.

    Returns:
        The same object.

    Raises:
        TypeError, OSError, ValueError: as ``compress_model`` does for ``plan``.
    """
    return compress_model(model, plan=plan)


def _call(args: Any, kwargs: Mapping[str, Any] | None) -> tuple[Any, dict[str, Any]]:
    """The arguments of one call, by place and by name."""
    if isinstance(args, Mapping):
        if kwargs is not None:
            raise ValueError("kwargs must be None where args is a mapping; put all into one of them")
        return (), dict(args)
    return args if isinstance(args, tuple) else (args,), dict(kwargs or {})
