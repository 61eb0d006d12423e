"""What ``compress_model`` was asked to plan, a budget, bounds or a plan, and whether that goes with model and level."""

from __future__ import annotations

from torch import nn

from integrations._planning.bounds import FULL, Bounds
from integrations._planning.budget import require_budget
from integrations._planning.plan import Plan
from integrations._step.graphs.fingerprint import fingerprint
from integrations._step.graphs.sharding import class_of
from integrations.rules.levels import LEVELS, Level

Asked = str | int | float | Plan | Bounds
OPTIMAL = "optimal"


def level_with(level: str | None, bounds: Bounds | None) -> str:
    """The level's name, or the default if it was left out: with bounds, a level at which a plan decides everything."""
    if level is None:
        return "L1" if bounds is None else "L0"
    return level


def require_one(bounds: Bounds | None, checkpoint: Asked | None) -> Asked | None:
    """What ``compress_model`` was asked to plan; ``None`` if nothing.

    Raises:
        TypeError: ``checkpoint`` has the wrong type.
        ValueError: it is not a budget, or was asked for beside bounds.
    """
    if checkpoint is None:
        return bounds
    if bounds is not None:
        raise ValueError(
            "checkpoint must be None beside memory, time, error and stores, whose plan has backward recompute what "
            f"is worth it, got {checkpoint!r}; memory takes the same budgets"
        )
    require_asked(checkpoint)
    return checkpoint


def planning_for(asked: Asked) -> str:
    """The arguments that ask for a plan, in words."""
    if isinstance(asked, Bounds):
        return f"plan({asked})"
    return "a plan of its own" if isinstance(asked, Plan) else f"checkpoint={asked!r}"


def require_asked(asked: object) -> None:
    """Checks the ``checkpoint`` of ``compress_model``.

    Raises:
        TypeError: it has the wrong type.
        ValueError: it is not a budget.
    """
    if asked == OPTIMAL or isinstance(asked, Plan):
        return
    if isinstance(asked, bool) or not isinstance(asked, (str, int, float)):
        raise TypeError(
            "checkpoint must be 'optimal', a Plan of integrations.checkpoint.plan, or a budget: bytes as an int, a "
            f"string such as '4GiB', or a fraction of the plain step's peak; got {asked!r}"
        )
    try:
        require_budget(asked)
    except ValueError as error:
        raise ValueError(f"checkpoint must be 'optimal', a Plan or a budget, and as such: {error}") from None


def require_of(plan: Plan, model: nn.Module) -> None:
    """Checks that a plan is the model's.

    Raises:
        ValueError: it is another model's.
    """
    if fingerprint(model) != plan.graph.fingerprint:
        raise ValueError(
            f"the plan must be one of this model: it was made for a {plan.model} whose modules or parameters' shapes "
            f"differ from those of this {class_of(model).__name__}; integrations.plan makes one, and so does "
            "compress_model with memory= or checkpoint="
        )


def require_at(plan: Plan, level: Level) -> None:
    """Checks that a plan does not go with a level that stores values in another way than the plan says.

    Raises:
        ValueError: it does.
    """
    if plan.level is not None and plan.level != level:
        name = next((name for name, known in LEVELS.items() if known == plan.level), None)
        raise ValueError(
            f"checkpoint must be a plan for this level, got one for {name or plan.level}, which says how everything is "
            f"stored; call compress_model with that level{'' if name is None else f', level={name!r},'} and "
            "checkpoint=plan"
        )
    if plan.level is None and plan.menus is not None and not level.off:
        raise ValueError(
            "checkpoint must be a plan of integrations.checkpoint.plan beside a level, which says how everything is "
            "stored, got one that has a store for each value; leave out the level: integrations.apply(model, plan)"
        )


def require_loss(plan: Plan, loss: object) -> None:
    """Check that a plan does not compute the loss in chunks where ``loss="full"`` forbids it.

    Raises:
        ValueError: it does.
    """
    if plan.chunked is not None and loss == FULL:
        raise ValueError(
            f"loss must not be 'full' with this plan of {plan.model}, which computes the loss in chunks, without whole "
            "logits: leave loss='full' out, or make a plan with it"
        )
