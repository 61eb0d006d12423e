"""``planned``: from a model and its inputs to the plan of how every value waits for backward."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from time import perf_counter
from typing import Any

from torch import nn

from integrations._utils.progress import stage
from integrations._utils.warn import warn
from integrations.capture.capture import capture_reaching, find_reachable_state
from integrations.capture.costs.calibrating import calibrated
from integrations.capture.costs.operator_costs import by
from integrations.capture.costs.rates import Rating, constant
from integrations.capture.costs.workspaces import with_workspaces_of_cudnn
from integrations.capture.errors import NoPartCaptured
from integrations.capture.graphs.graph import Graph
from integrations.capture.graphs.sharding import get_class, is_context_parallel, is_tensor_parallel, within_units
from integrations.capture.loss import Loss
from integrations.planner.accumulation import WITH_ROUNDING
from integrations.planner.bounds import ONLY_RECOMPUTE, USUAL_ERROR, Bounds
from integrations.planner.candidates import Weigh, storage_candidates, usual
from integrations.planner.chunked import chunking
from integrations.planner.plan import Plan
from integrations.planner.savers import Seen
from integrations.planner.search import Captures, solved
from integrations.planner.sensitivity.bit_plan import BitPlan
from integrations.planner.storage_candidates import StorageCandidates
from integrations.policies.levels import Level

_EXACT = Bounds()


def rating_for(bounds: Bounds) -> Rating:
    """Return the rates for a plan: those of this machine, or constant ones where values are only kept or recomputed."""
    return constant if bounds.stores == ONLY_RECOMPUTE else calibrated


def planned(
    model: nn.Module,
    level: Level,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    bounds: Bounds = _EXACT,
    *,
    real: bool = False,
    loss: Loss | None = None,
    holds_outputs: bool | None = None,
    weigh: Weigh = usual,
    rating: Rating = constant,
    bits: BitPlan | None = None,
    estimates: Weigh | None = None,
    units: Collection[str] = (),
) -> Plan:
    """Return the plan of the least peak, with all plans that no other beats in both peak and time.

    A level leaves each value one store, its own. Without one, as at ``"L0"``, a value may be kept, be recomputed, or
    wait in any store that all operators that save it bear. If rounding is allowed, the forward is captured twice: with
    torch's own attention, whose plans round nothing, and with attention that is recomputed from what is stored.

    Args:
        model: in training mode.
        level: the level at which everything is stored. If it is off, it says only the sizes of groups, which tensors
            are small, and what is kept exactly.
        args, kwargs: of the model's forward.
        bounds: the bounds; those on memory and time are left to ``Plan.within``.
        real, loss, holds_outputs: as in ``capture``.
        weigh: gives candidates the weights of their values.
        rating: the rates of operators and stores.
        bits: the bits that an adaptive level gives its tensors, once it has measured them.
        estimates: gives candidates their weights where rounding is allowed. With it, an exact plan has a function that
            estimates what rounding would allow, under ``WITH_ROUNDING``. The function holds the captures.
        units: the paths of modules that ``fully_shard`` will be given. Those that it was given are known.

    Raises:
        NoPartCaptured: the model is in tensor or context parallel, and plans may round by the bound on the error.
    """
    if is_tensor_parallel(model):
        # Ranks round the activations alike that all of them have, and wait for each other's collectives. So each must
        # find the same plan, by rates that none of them measures.
        if bounds.error:
            raise NoPartCaptured(
                f"error must be 0 for a model in tensor parallel, got {bounds.error:g}, since each rank would measure "
                "its own part of the activations, and choose other bits for the activations that all ranks have"
            )
        rating, estimates = constant, None
    if bounds.error and not bounds.falls_back and is_context_parallel(model):
        # Each rank has a plan of its own, so one rank would raise that has to measure its plan, and the others wait.
        raise NoPartCaptured(
            f"error must be 0 for a model in context parallel, got {bounds.error:g}, since attention communicates with "
            "the other ranks, which run no measurement step at the same time. Pass error=0, or fallback='least' to "
            "rely on the plan's estimates"
        )
    started = perf_counter()
    costs = with_workspaces_of_cudnn(by(rating))
    known = find_reachable_state(model, args, kwargs)

    def captured(recomputes: bool) -> tuple[Graph, Seen]:
        stage("capturing the step")
        seen = Seen(recomputes, named=bits is not None)
        options: dict[str, Any] = {"real": real, "loss": loss, "holds_outputs": holds_outputs}
        # Between two captures, another thread may change what they can get at.
        reach = known if known.alone else find_reachable_state(model, args, kwargs)
        graph = capture_reaching(reach, model, args, kwargs, hooks=seen.hooks, costs=costs, **options)
        return within_units(graph, units).with_in_flight(bounds.in_flight or 1), seen

    def with_candidates(
        graph: Graph, seen: Seen, rounded: bool, bounds: Bounds, weigh: Weigh = weigh
    ) -> tuple[Graph, StorageCandidates]:
        graph = graph.as_rounded if rounded else graph
        if (
            rounded and level.off
        ):  # at a level, what attention reads is stored in other bits for attention than for a repetition
            graph = graph.with_remade(seen.remade)
        if not bounds.recomputes:
            graph = graph.keeping_all
        return graph, storage_candidates(graph, seen, level, rating, weigh, bounds.allows, bits)

    error = (bounds.error or 0.0) if level.off else None
    several = bounds.in_flight if (bounds.in_flight or 1) > 1 else None
    bounds = replace(bounds, memory=None, time=None, error=error, fallback="error", in_flight=several)
    if not level.off:
        graph, candidates = with_candidates(*captured(level.bits is not None), level.rounds_checkpoints, bounds)
        captures = Captures(graph, candidates, level=level)
    else:
        found = captured(not bounds.exact)
        if found[0].double_backward and not bounds.exact:
            bounds = replace(bounds, error=0.0)
            warn(
                f"{get_class(model).__name__}: the step differentiates its gradients (create_graph=True), so the plan "
                "rounds nothing"
            )
        rounded, rounded_candidates = (None, None) if bounds.exact else with_candidates(*found, True, bounds)
        if found[1].replaced:  # attention was replaced
            found = captured(False)
        graph, candidates = with_candidates(*found, False, bounds)
        captures = Captures(graph, candidates.exact(), rounded, rounded_candidates)
    stage("searching")
    taken = perf_counter() - started
    name = get_class(model).__name__
    made = solved(Plan, name, captures, bounds, capture_seconds=taken)
    made = replace(made, loss=loss, chunking=chunking(model, graph))
    if estimates is not None and level.off and bounds.exact and not graph.double_backward:
        seen, with_error = found, replace(bounds, error=USUAL_ERROR)

        def with_rounding() -> Plan:
            rounded = with_candidates(*seen, True, with_error, estimates)
            return solved(Plan, name, Captures(graph, captures.candidates, *rounded), with_error)

        made.others[WITH_ROUNDING] = with_rounding
    return made
