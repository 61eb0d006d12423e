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
    """Choose which tensors of a model's forward to keep for backward, and which ones backward recomputes.

    ::

        plan = integrations.checkpoint.plan(model, (images,), memory="4GiB")
        print(plan)
        integrations.checkpoint.apply(model, plan)
        ...train as before...

    The model's forward runs once on fake tensors, which have no data: it takes no memory, and does not change random
    generators, parameters, gradients or buffers such as BatchNorm's. The search is ``actcore.checkpoint_plans``, on the
    bytes that backward keeps, including gradients. It is deterministic: ranks that plan for the same shapes get the
    same plan.

    Args:
        model: the model, in training mode and not wrapped: pass the module inside of DistributedDataParallel.
        inputs: the inputs of the forward, as in training and as the model's own hooks leave them: a tuple, a mapping by
            name, or the only input.
        memory: the budget of activation peak (bytes during the step beyond those before it, without the parameters'
            gradients): an int, in bytes; a string such as ``"4GiB"``; a fraction of the plain step's peak, such as
            ``0.4`` or ``"40%"``; or ``"auto"``, the free memory, as for ``compress_model``. The plan recomputes the
            least within the budget. ``None`` or ``"least"``: the least possible peak. ``budget`` is an older name.
        kwargs: further inputs by name, if ``inputs`` is not a mapping.
        objective: ``"peak"``, or ``"paper"``: the sum of the kept tensors plus the largest segment, as in Feng & Huang,
            "Optimal gradient checkpoint search for arbitrary computation graphs" (CVPR 2021); without ``memory``.
        real: capture on real tensors, in the time and memory of a plain step, for a forward that takes another path if
            its inputs have no data.
        measure: run each distinct operator on this machine, to measure its time and the workspace of its kernel: copies
            in another layout, partial sums. The planned peak is then within 5 % of the measured one, if activations
            take more than a few MiB. This takes the time of some steps. As measured times vary, ranks get the plan of
            one of them. Otherwise times are modelled, and workspaces are counted as 0 bytes.
        criterion: a function that takes the model's output and returns the tensors that the step differentiates: one
            or several tensors of the output, or a loss computed from them, whose memory is then also in the plan:
            ``lambda out: cross_entropy(out, y)``. ``None``: the output's ``loss``, as in transformers; or its only
            scalar, if it is alone or follows from all others; or else the whole output. ``print(plan)`` names it.
            ``loss`` is an older name.
        holds_outputs: whether the step holds the whole output while backward runs: ``out = model(x)`` does,
            ``model(x).loss.backward()`` does not. ``None``: it does, unless the output has its loss.

    Raises:
        TypeError: an argument has the wrong type, or ``criterion`` returned no tensor.
        ValueError: the budget cannot be met (the message names the least possible one), the model is not in training
            mode, none of its outputs requires a gradient, or no plan can be made (the message says why, and what to
            do).
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
