"""What users are told of plans in use: of budgets that are not kept, and of forwards that are not as captured."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from integrations.capture.graphs.signature import Signature
from integrations.planner.bounds import Bounds
from integrations.planner.gradient_states import GradientState
from integrations.planner.infeasible import why_infeasible
from integrations.planner.plan import Plan
from integrations.report.words import format_bytes

_WHERE: Mapping[GradientState, str] = MappingProxyType(
    {
        "fresh": "",
        "accumulating": " in steps that add to gradients",
        "clearing": " where gradients are cleared between forward and backward",
    }
)
_REMEDY: Mapping[GradientState, str] = MappingProxyType(
    {
        "fresh": "",
        "accumulating": ". If steps do not accumulate, call optimizer.zero_grad(), with set_to_none=True, before the "
        "forward",
        "clearing": ". Call optimizer.zero_grad() before the forward, which takes less",
    }
)

_RUNS_TWICE = (
    "It runs a second time from its start, since it has stored tensors in few bits for the planned path: its Python "
    "code and the hooks of its submodules run twice in this step"
)


def shapes_refused(planned: Signature, inputs: Signature) -> str:
    """Return the error for inputs of other shapes than planned for, where these are refused."""
    return (
        f"inputs must be of the shapes and under the autocast that the plan was made for, {planned}, or smaller, got "
        f"{inputs}; plan for these inputs, or apply the plan with shapes='replan'"
    )


def bounds_exceeded(least: Plan, inputs: Signature, state: GradientState, asked: Bounds) -> str:
    """Return that no plan keeps to the bounds that were asked for.

    Args:
        least: the plan of the least memory for the inputs and the state.
        inputs: of the forward.
        state: of the gradients.
        asked: the bounds.
    """
    bounds = [] if asked.memory is None else [f"memory={asked.memory!r}"]
    bounds += [] if asked.time is None else [f"time={asked.time:g}"]
    return f"no plan of {least.model} for inputs {inputs}{_WHERE[state]} keeps to {' and '.join(bounds)}"


def bounds_exceeded_error(least: Plan, inputs: Signature, state: GradientState, asked: Bounds, why: str = "") -> str:
    """Return the same as an error, with the reason and what to do. ``why``: why there is no better plan, if known."""
    anyway = "" if least.candidates is None else ". Pass fallback='least' to continue with more memory"
    why = why or why_infeasible(least, asked)
    return f"{bounds_exceeded(least, inputs, state, asked)}: {why}{_REMEDY[state]}{anyway}"


def bounds_exceeded_warning(
    least: Plan, inputs: Signature, state: GradientState, asked: Bounds, once: bool = False
) -> str:
    """Return the same as a warning, with the memory that is taken instead.

    Args:
        least, inputs, state, asked: as for ``bounds_exceeded``.
        once: whether only this step may take that memory, because it may still clear its gradients.
    """
    taken = format_bytes(least.peak)
    told = f"{bounds_exceeded(least, inputs, state, asked)}: the plan with the least activation peak, {taken}, is used"
    if not once:
        return told
    enough = f"memory={least.peak}" if asked.time is None else "larger bounds"
    return (
        f"{told} in this step. If backward adds to the gradients, the next such step raises an error: pass {enough} "
        f"or fallback='least'{_REMEDY[state]}"
    )


def loss_missing(made: Plan) -> str:
    """Return a warning of a plan that starts from another loss than the first one, which was not saved with it."""
    return (
        f"the plan of {made.model} was made with a loss, which is not saved with a plan: for inputs "
        f"{made.graph.inputs}, backward is assumed to start from {made.graph.differentiated}; apply a plan that is "
        "made in this process: integrations.checkpoint.plan(model, inputs, criterion=...)"
    )


def forward_differs(plan: Plan, where: str, repeats: bool, again: bool | None, varies: bool) -> str:
    """Return a warning of a forward that its plan is not for.

    Args:
        plan: the plan that the forward has followed.
        where: where the forward differs, in words.
        repeats: whether the forward now runs a second time.
        again: whether there will be another capture; ``None`` if nothing is to be said of it.
        varies: whether the error is kept within the bound on every path from now on.
    """
    first = _RUNS_TWICE if repeats else _rest_of_forward(plan)
    after = f". The {'second run' if repeats else 'next forward with such inputs'} gets a new plan"
    after = after if again else _without_captures(plan) if again is False else ""
    text = f"{first}{after}{_from_now_on(plan) if varies else ''}"
    return f"{plan.model}'s forward is not the one that was captured. {text}. The difference: {where}"


def _from_now_on(plan: Plan) -> str:
    """Return a sentence on the error of the forwards after one that took another path."""
    least = "rounds to fewer than 8 bits" if plan.bounds.rounds_unforeseen else "rounds"
    return (
        f". From now on no step {least}, which keeps the error within error={plan.error:g} on every path. If the "
        "forward takes the new path from now on, call integrations.restore_model(model) and compress it again"
    )


def _without_captures(plan: Plan) -> str:
    """Return what it means that no other capture is made for these inputs, and what to do."""
    budget = "was planned" if plan.memory is None else f"memory={plan.memory!r}"
    return (
        ". No other capture is made for these inputs: from now on, steps that take another path than the last "
        f"captured one may take more than {budget}. Pass the value that chooses the path as an argument of the "
        "forward, such as a number: then each path gets its own plan"
    )


def _rest_of_forward(plan: Plan) -> str:
    """Return what becomes of the rest of a forward that is not its plan's."""
    if plan.compressed:
        return "The rest of the forward is stored as the level says and not recomputed, so less memory is saved"
    if plan.followed.rounded and plan.bounds.rounds_unforeseen:
        return "The rest of the forward is stored in 8 bits and not recomputed, so less memory is saved"
    return "The rest of the forward is kept, so gradients are right and less memory is saved"
