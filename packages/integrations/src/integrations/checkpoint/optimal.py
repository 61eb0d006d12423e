"""``optimal_grad_checkpointing``: the call of Optimal Gradient Checkpointing's README."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from torch import nn

from integrations._utils.warn import warn
from integrations.capture.loss import Loss
from integrations.checkpoint.applied import apply
from integrations.checkpoint.parsed import ParsedForward
from integrations.planner.budget import Budget
from integrations.planner.plan_recomputation import plan

Model = TypeVar("Model", bound=nn.Module)


def optimal_grad_checkpointing(
    net: Model,
    inp: Any,
    *,
    budget: Budget | None = None,
    loss: Loss | None = None,
    holds_outputs: bool | None = None,
) -> Model:
    """A module that trains as ``net`` does, with the least memory that repeating parts of the forward can buy.

    ::

        net = torchvision.models.resnet18()
        run_segment = optimal_grad_checkpointing(net, inp)
        loss = criterion(run_segment(images), labels)

    What comes back is a shallow copy of ``net``: of its class, with the very same parameters, buffers and modules, so
    that ``state_dict``, optimizers and ``eval()`` work with either; ``net`` itself stays plain. For a model in place,
    and for plans that can be printed and saved, see ``plan`` and ``apply``.

    The forward is captured by itself. Where that fails and ``net`` has a ``parse_graph``, as the README describes it,
    the graph that it returns is run in the forward's place: a ``networkx.MultiDiGraph``, its source and its target; an
    edge has a ``module``, and a node with several inputs a ``transition`` and its ``transition_input_order``.

    Args:
        net: any module; it is put into training mode, as by ``net.train()``.
        inp: its input, as in training: a tensor, a tuple of several, or a mapping by name. It need not require a
            gradient.
        budget, loss, holds_outputs: as in ``plan``.

    Raises:
        TypeError, ValueError: as ``plan`` does.
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"net must be a torch.nn.Module, got {type(net).__name__}")
    net.train()
    twin = copy.copy(net)
    try:
        found = plan(twin, inp, budget=budget, loss=loss, holds_outputs=holds_outputs)
    except Exception as error:
        parse_graph: Any = getattr(net, "parse_graph", None)
        if parse_graph is None:
            raise
        given = inp if not isinstance(inp, (tuple, list)) or len(inp) > 1 else inp[0]
        twin.__dict__["forward"] = ParsedForward(*parse_graph(given))
        warn(
            f"{type(net).__name__}'s forward cannot be captured ({type(error).__name__}: {error}); the graph of its "
            "parse_graph is run in its place"
        )
        found = plan(twin, inp, budget=budget, loss=loss, holds_outputs=holds_outputs)
    return apply(twin, found)
