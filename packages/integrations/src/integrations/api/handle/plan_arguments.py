"""What ``compress_model`` was asked to plan, a budget, bounds or a plan, and whether that goes with model and level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from os import PathLike, fspath
from typing import Any

import torch
from torch import nn

from integrations.capture.graphs.fingerprint import fingerprint
from integrations.capture.graphs.sharding import get_class
from integrations.planner.bounds import FULL, ONLY_RECOMPUTE, Bounds
from integrations.planner.budget import python_number, require_budget
from integrations.planner.plan import Plan
from integrations.policies.levels import LEVELS, Level, resolve_level

Given = Plan | str | PathLike[str]
"""A plan that a model is to follow, or the file that it was saved to."""
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
            f"checkpoint= cannot be combined with memory=, time=, error= or stores=, got {checkpoint!r}; use memory= "
            "alone, which takes the same budgets and chooses what to recompute by itself"
        )
    checkpoint = python_number(checkpoint)
    require_asked(checkpoint)
    return checkpoint


def read_plan(given: object) -> Plan:
    """Return the plan that ``plan=`` names, from a file if it is a path.

    Raises:
        TypeError: it is neither a plan nor a path.
        OSError: the file cannot be read.
        ValueError: the file is not one that ``Plan.save`` wrote, or is damaged.
    """
    if isinstance(given, Plan):
        return given
    if not isinstance(given, str | PathLike):
        raise TypeError(
            "plan must be a Plan of integrations.plan or of handle.plan, or the path of a file that Plan.save wrote, "
            f"got {type(given).__name__}"
        )
    try:
        return Plan.load(fspath(given))
    except OSError as error:
        error.add_note(
            f"plan={fspath(given)!r} must be a file that Plan.save wrote: after a training step with memory=, call "
            "integrations.compression(model).plan.save(path)."
        )
        raise


def with_plan(
    given: Given, level: str | None, options: Mapping[str, Any], fallback: Any = None, **others: Any
) -> tuple[Plan, str, dict[str, Any]]:
    """Return the plan that ``compress_model`` was given to follow, and the level and options that go with it.

    Args:
        given: the plan, or the path of its file.
        level, options: as ``compress_model`` was given them. Without a level, it is the plan's.
        fallback: likewise: what happens where the plan's bounds cannot be kept. Without it, as the plan says.
        **others: the arguments that ask for another plan, ``None`` where they were left out.

    Raises:
        TypeError, OSError: as ``read_plan``.
        ValueError: as ``read_plan``; or the plan was made with another torch, comes with one of ``others``, or with
            another level than its own.
    """
    beside = ", ".join(f"{name}={value!r}" for name, value in others.items() if value is not None)
    if beside:
        raise ValueError(
            f"plan= cannot be combined with {beside}, because a saved plan is used unchanged. Leave "
            f"{beside.split('=')[0]} out to use the saved plan, or leave plan out to make a new one"
        )
    plan = read_plan(given)
    require_this_torch(plan)
    if fallback is not None:
        plan = plan.with_bounds(replace(plan.bounds, fallback=fallback))
    own, changed = ("L0", {}) if plan.level is None else _named(plan.level)
    if level is None:
        level, options = own, {**changed, **options}
    found = resolve_level(level, options)
    if found != plan.level and not (plan.level is None and found.off):
        rule = "left out with a plan that was made without a level" if plan.level is None else "that of the plan"
        title = "" if plan.level is None else f", {plan.level.title(own)}"
        raise ValueError(
            f"level must be {rule}{title}, got {found.title(level)}; leave level and its options out, or make another "
            "plan for that level"
        )
    return plan, level, dict(options)


def _named(level: Level) -> tuple[str, dict[str, Any]]:
    """Return the name of the preset that a level was made of, and the options that replace its fields."""

    def changed(preset: Level) -> dict[str, Any]:
        pairs = ((field.name, getattr(level, field.name), getattr(preset, field.name)) for field in fields(level))
        return {name: value for name, value, usual in pairs if value != usual}

    name = min(LEVELS, key=lambda name: len(changed(LEVELS[name])))
    return name, changed(LEVELS[name])


def asked_bounds(asked: Asked) -> Bounds:
    """Return the bounds of a plan, or those that were asked for. A budget beside a level only bounds recomputation."""
    if isinstance(asked, Plan):
        return asked.bounds
    if isinstance(asked, Bounds):
        return asked
    return Bounds(None if asked == OPTIMAL else asked, error=None, stores=ONLY_RECOMPUTE)


def planning_for(asked: Asked) -> str:
    """The arguments that ask for a plan, in words."""
    if isinstance(asked, Bounds | Plan):
        return f"plan({asked_bounds(asked)})"
    return f"checkpoint={asked!r}"


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
        require_budget(asked, "checkpoint")
    except ValueError as error:
        raise ValueError(f"checkpoint must be 'optimal', a Plan or a valid budget: {error}") from None


def require_same_model(plan: Plan, model: nn.Module) -> None:
    """Checks that a plan is the model's.

    Raises:
        ValueError: it is another model's.
    """
    if fingerprint(model) != plan.graph.fingerprint:
        raise ValueError(
            f"the plan must be one of this model: it was made for a {plan.model} whose modules, or whose parameters' "
            f"or buffers' shapes, dtypes or requires_grad, differ from those of this {get_class(model).__name__}. "
            "Build the model as it was when the plan was made, or make a new plan: compress_model(model, memory=...)"
        )


def is_of_this_torch(plan: Plan) -> bool:
    """Return whether a plan was made with this minor version of torch, as far as that is known. Forwards may call other
    operators in other versions."""
    theirs = plan.graph.torch_version
    return not theirs or theirs.split(".")[:2] == torch.__version__.split(".")[:2]


def require_this_torch(plan: Plan) -> None:
    """Checks that a plan was made with this minor version of torch.

    Raises:
        ValueError: it was not.
    """
    if not is_of_this_torch(plan):
        raise ValueError(
            f"the plan must be made with this version of torch, {torch.__version__}, got one made with "
            f"{plan.graph.torch_version:.40}, whose operators may differ. Make a new plan: compress_model(model, "
            "memory=...)"
        )


def require_at(plan: Plan, level: Level) -> None:
    """Checks that a plan does not go with a level that stores values in another way than the plan says.

    Raises:
        ValueError: it does.
    """
    if plan.level is not None and plan.level != level:
        name = next((name for name, known in LEVELS.items() if known == plan.level), None)
        raise ValueError(
            f"checkpoint must be a plan for this level, got a plan for {name or plan.level}; call compress_model "
            f"with that level{'' if name is None else f', level={name!r},'} and checkpoint=plan"
        )
    if plan.level is None and plan.candidates is not None and not level.off:
        raise ValueError(
            "checkpoint must be a plan of integrations.checkpoint.plan if a level is given, because the level "
            "chooses how tensors are stored; got a plan that chooses this for each value. Leave the level out: "
            "integrations.apply(model, plan)"
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
