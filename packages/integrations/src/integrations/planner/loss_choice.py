"""``first_plan``: plan for the loss that was asked for. ``with_better_loss``: plan for whole logits, and for the loss
in chunks where that may be better."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from torch import nn

from integrations.capture.graphs.graph import Graph
from integrations.capture.loss import OF_LOGITS, OF_LOSS
from integrations.losses._chunks import most_rows_of_chunk
from integrations.losses.chunked_head import ChunkedHead
from integrations.losses.head import asked_head, computing_loss
from integrations.planner.bounds import Bounds
from integrations.planner.budget import LEAST
from integrations.planner.chunked import SHARE, ChunkedLoss, chunk_op, head_in, largest_product, logits_bytes
from integrations.planner.errors import BudgetError
from integrations.planner.plan import Plan
from integrations.planner.problem import SimulatedStep, all_kept


def with_better_loss(
    model: nn.Module, make: Callable[[], Plan], bounds: Bounds, first: Plan | None = None, head: str | None = None
) -> Plan:
    """Return the plan of the least memory for whole logits or for the loss in chunks, whichever has the better plan
    within bounds.

    Whole logits are better if they keep to the bounds in no more time. If neither keeps to them, less memory is better.
    If the bounds leave no choice, or ``loss=`` has made it, there is one plan.

    Args:
        model: the model.
        make: captures the model's step and makes the plan of the least memory.
        bounds: the bounds.
        first: the result of ``first_plan``, if it was made.
        head: as for ``first_plan``.
    """
    full = first_plan(model, make, head) if first is None else first
    if head is not None or asked_head(model) is not None:
        return full
    path = head_in(model, full.graph) if bounds.chooses_loss else None
    if path is None or not _is_worth_trying(full, bounds):
        return full
    with computing_loss(model, path):
        found = _in_chunks(make(), path, full, model)
    classes = cast(int, model.get_submodule(path).out_features)
    full = full._sharing(chunking="")  # so that no error names the loss in chunks
    if largest_product(found.graph, classes) >= largest_product(full.graph, classes):
        return full  # something asks for the logits themselves
    return min((full, found), key=lambda plan: _rank(plan, bounds))


def first_plan(model: nn.Module, make: Callable[[], Plan], head: str | None = None) -> Plan:
    """Return the plan of the least memory for the loss that was asked for: in chunks of the default size, or else from
    whole logits.

    Args:
        model: the model.
        make: captures the model's step and makes the plan of the least memory.
        head: the path of the layer whose logits are not to be made, if something other than ``compress_model(loss=)``
            asks for that.
    """
    path = asked_head(model) or head
    with computing_loss(model, path):
        layer = None if path is None else ChunkedHead.of(model.get_submodule(path))
        if path is None or layer is None:
            return make()
        layer.rows = layer.made_for = None  # of an earlier forward
        found = make()
        if layer.rows is None or layer.made_for is not None:
            return found
        inside = chunk_op(found.graph) is not None
        outside = not inside and found.graph.differentiated in (OF_LOSS, OF_LOGITS)
        return _in_chunks(found, path, found, model, outside) if inside or outside else found


def _is_worth_trying(full: Plan, bounds: Bounds) -> bool:
    """Return whether a loss in chunks may be better than a plan for whole logits."""
    if logits_bytes(full.graph) * SHARE < full.front[0].peak:
        return False
    try:
        return bounds.memory == LEAST or full.within(bounds.memory, bounds.time).seconds > 0
    except BudgetError:
        return True


def _in_chunks(plan: Plan, path: str, full: Plan, model: nn.Module, outside: bool = False) -> Plan:
    """Return a plan with its loss in chunks, which is measured by the plain step with whole logits."""
    graph, layer = full.graph, model.get_submodule(path)
    head = ChunkedHead.of(layer)
    rows = 0 if outside or head is None or head.rows is None else head.rows  # of the capture
    fixed = head is not None and head.ranks_share_rows  # ranks may follow different plans
    device = next((tensor.device.type for tensor in layer.parameters()), "cpu")
    chunked = ChunkedLoss(
        path,
        peak=_peak(graph),
        accumulating_peak=_peak(graph.accumulating if graph.standing else graph),
        seconds=graph.seconds,
        rows=rows,
        least_rows=rows,
        most_rows=rows if fixed else most_rows_of_chunk(device),
        outside=outside,
        assumed=outside and graph.differentiated == OF_LOGITS,
    )
    return plan._sharing(chunked=chunked)


def _peak(graph: Graph) -> int:
    """Return the activation peak of the plain step."""
    return SimulatedStep(graph).peak(all_kept(graph))


def _rank(plan: Plan, bounds: Bounds) -> tuple[float, ...]:
    """Return numbers that are smaller for a better plan. Of equal ones the first is taken."""
    try:
        found = plan.within(bounds.memory, bounds.time)
    except BudgetError:
        return 1, plan.front[0].peak
    seconds = found.graph.seconds + found.seconds
    return (0, found.peak, seconds) if bounds.memory == LEAST else (0, seconds)
