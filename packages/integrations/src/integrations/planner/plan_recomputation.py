"""``plan``: from a model and its inputs to what is best kept for backward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from time import perf_counter
from typing import Any, get_args

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from integrations._utils.compiling import compiled_module
from integrations._utils.older_names import accepts_older_names
from integrations._utils.progress import shows_planning, stage
from integrations.capture.capture import capture
from integrations.capture.graphs.graph import Graph
from integrations.capture.graphs.sharding import get_class
from integrations.capture.loss import Loss, require_loss
from integrations.planner.budget import Budget
from integrations.planner.chunked import chunking
from integrations.planner.errors import raising_for_user
from integrations.planner.free_memory import resolved
from integrations.planner.plan import Plan
from integrations.planner.planning_failures import planning
from integrations.planner.search import Captures, solved
from integrations.planner.solution import UNBOUNDED, Objective


@accepts_older_names(memory="budget", criterion="loss")
@raising_for_user
@shows_planning
def plan(
    model: nn.Module,
    inputs: Any,
    *,
    memory: Budget | None = None,
    kwargs: Mapping[str, Any] | None = None,
    objective: Objective = "peak",
    real: bool = False,
    measure: bool = False,
    criterion: Loss | None = None,
    holds_outputs: bool | None = None,
) -> Plan:
    """Finds out what of a model's forward to keep for backward, and what backward had better recompute.

    ::

        plan = integrations.checkpoint.plan(model, (images,), memory="4GiB")
        print(plan)
        integrations.checkpoint.apply(model, plan)
        ...train as before...

    The model's forward runs once on fake tensors, which have no elements: no memory is taken, no generator moves, and
    parameters, gradients and buffers such as BatchNorm's are not touched. The search is ``actcore.checkpoint_plans``,
    on the bytes that backward keeps, gradients included. It is deterministic: ranks that plan for the same shapes get
    the same.

    Args:
        model: in the mode in which it is trained, and not wrapped: plan for the module that DistributedDataParallel is
            given.
        inputs: the forward's, as in training and as the model's own hooks leave them: a tuple, a mapping by name, or
            the only one.
        memory: bound on the activation peak (bytes during the step beyond those before it, without the parameters'
            gradients). An int, bytes; a string such as ``"4GiB"``; a fraction of the plain step's, such as ``0.4`` or
            ``"40%"``; ``"auto"``, the memory that is free, as for ``compress_model``. The plan recomputes the least
            within it. ``None`` or ``"least"``: the least peak that there is. ``budget`` is an older name.
        kwargs: further inputs by name, where ``inputs`` is no mapping.
        objective: ``"peak"``, or ``"paper"``: the sum of all kept tensors plus the largest segment, as in Feng & Huang,
            "Optimal gradient checkpoint search for arbitrary computation graphs" (CVPR 2021); without ``memory``.
        real: capture on real tensors, in the time and memory of a plain step, for a forward that takes another way
            where its inputs have no elements.
        measure: run each distinct operator on this machine, for its time and for the memory that its kernel takes
            beside its arguments and results: copies in another layout, partial sums. The planned peak is then the
            measured one within 5 %, where activations take more than a few MiB. Takes some steps' time; and as times
            are never quite the same, ranks get the plan from one of them. Otherwise times are modelled, and kernels
            take nothing.
        criterion: a function from the model's output to the tensors that backward starts from: one of the output's
            tensors, several, or a loss that is computed of them, whose memory is then in the plan, too:
            ``lambda out: cross_entropy(out, y)``. ``None``: the ``loss`` that the output has, as those of transformers
            do; or the only scalar in it, if it is alone or follows from all others; or else all of it. ``print(plan)``
            says which. ``loss`` is an older name.
        holds_outputs: whether the step holds the whole output while backward runs: so ``out = model(x)`` does, and
            ``model(x).loss.backward()`` does not. ``None``: it does unless the output has its loss.

    Raises:
        TypeError: an argument has the wrong type, or ``criterion`` returned no tensor.
        ValueError: ``memory`` cannot be met (the message names the least that can), the model is not in training mode,
            none of its outputs requires a gradient, or no plan can be made (the message says why, and what to do).
        Exception: the model raises it with these inputs.
    """
    model = plannable(model)
    require_loss(criterion)
    if objective not in get_args(Objective):
        raise ValueError(f"objective must be 'peak' or 'paper', got {objective!r}")
    if objective == "paper" and memory is not None:
        raise ValueError(f"memory must be None with objective='paper', which has no peak, got {memory!r}")
    if isinstance(inputs, Mapping):
        if kwargs is not None:
            raise ValueError("kwargs must be None where inputs is a mapping; put all into one of them")
        inputs, kwargs = (), inputs
    started = perf_counter()
    call = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    stage("capturing the step")
    with planning(model, call, kwargs or {}, criterion):
        graph = capture(model, call, kwargs, real=real, measure=measure, loss=criterion, holds_outputs=holds_outputs)
    captured = perf_counter()
    stage("searching")
    found = plan_of_graph(get_class(model).__name__, graph, objective, captured - started)
    found = replace(found, loss=criterion, chunking=chunking(model, graph))
    return found if memory is None else found.within(resolved(memory, model, call)[0])


def plan_of_graph(name: str, graph: Graph, objective: Objective = "peak", capture_seconds: float = 0.0) -> Plan:
    """The plan for a captured graph that only keeps and recomputes."""
    return solved(Plan, name, Captures(graph), UNBOUNDED, objective, capture_seconds)


def plannable(model: nn.Module) -> nn.Module:
    """The module to plan for: the inner one of a compiled module.

    Raises:
        TypeError: it is no module.
        ValueError: it wraps the module to plan for, such as DistributedDataParallel, or is not in training mode.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    model = compiled_module(model)
    if isinstance(model, (DataParallel, DistributedDataParallel)):
        raise ValueError(f"model must be the module that {type(model).__name__} wraps: model.module")
    if not model.training:
        raise ValueError("model must be in training mode; call model.train() first")
    return model
