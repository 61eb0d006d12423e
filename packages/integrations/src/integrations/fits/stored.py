"""``stored_profile``: a step at a level, as what the level's own forward stores lets expect."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from torch import nn

from integrations.adaptive.saves import final_values
from integrations.adaptive.weights import usual_weights
from integrations.fits.profile import Profile, profile_of
from integrations.forecast import forecast
from integrations.planning.menus import Menus, Option
from integrations.planning.savers import Seen
from integrations.step.capturing.capture import capture
from integrations.step.capturing.loss import Loss
from integrations.step.costs.modelled import by
from integrations.step.costs.rates import constant
from integrations.storing.records import RECOMPUTED

_KEPT = ("kept", "copied")


def stored_profile(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], level: str, loss: Loss | None
) -> Profile:
    """The profile of a model's step at a level.

    The forward is captured, and runs once more as the level would run it, both without elements. What that stores for
    each tensor is what its value holds while it waits.

    Raises:
        RuntimeError: the two forwards save different tensors.
        Exception: what the model raises with these inputs.
    """
    seen = Seen(recomputes=True)
    graph = capture(model, args, kwargs, hooks=seen.hooks, loss=loss, costs=by(constant))
    rows = [row for row in forecast(model, args, kwargs, level=level).rows if not row.owner]
    places = [(saver.saved.module, saver.saved.operator, saver.saved.role) for saver in seen.savers]
    if places != [(row.module, row.operator, row.role) for row in rows]:
        raise RuntimeError(
            f"the forward saves other tensors at level={level!r} than without: leave this level out, or ask "
            f"integrations.forecast(model, inputs, level={level!r}) for what it stores"
        )
    last = final_values(graph)
    found = defaultdict(list)
    for saver, row in zip(seen.savers, rows, strict=True):
        found[last[saver.value]].append(row)
    options: list[tuple[Option, ...]] = []
    for number, value in enumerate(graph.values):
        held = sum(row.stored_bytes for row in found[number])
        coded = [row for row in found[number] if row.codec not in _KEPT]
        if not coded or held >= value.nbytes or value.until >= len(graph.other) - 1:
            options.append(())
            continue
        # What is recomputed is so from another value, which is restored beside it.
        beside = value.nbytes if any(row.codec == RECOMPUTED for row in coded) else 0
        options.append((Option(store=None, held=held, restored=value.nbytes, passing=beside),))
    saved_at = [-1] * len(graph.values)
    for number, op in enumerate(graph.ops):
        for packed in op.packs:
            if graph.values[packed].producer <= number:
                saved_at[packed] = max(saved_at[packed], number)
    weights = usual_weights(graph, seen.saves.found)
    menus = Menus(tuple(options), weights, (0,) * len(graph.values), tuple(saved_at))
    return profile_of(graph, menus, forms=[0 if row else -1 for row in options])
