"""``stored_profile``: a step at a level, as what the level's own forward stores lets expect."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from integrations.capture.capture import capture
from integrations.capture.costs.operator_costs import by
from integrations.capture.costs.rates import constant
from integrations.capture.loss import Loss
from integrations.estimate.fit.profile import Profile, make_profile
from integrations.estimate.forecast import forecast
from integrations.planner.savers import Saver, Seen
from integrations.planner.sensitivity.saves import final_values
from integrations.planner.sensitivity.weights import usual_weights
from integrations.planner.storage_candidates import Option, StorageCandidates
from integrations.report import Row
from integrations.tracing.storage.records import IN_CHUNKS, RECOMPUTED

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
    last = final_values(graph)
    found = defaultdict(list)
    for saver, row in _make_rows(seen.savers, forecast(model, args, kwargs, level=level).rows, level):
        found[last[saver.value]].append(row)
    options: list[tuple[Option, ...]] = []
    for number, value in enumerate(graph.values):
        held = sum(row.stored_bytes for row in found[number])
        coded = [row for row in found[number] if row.codec not in _KEPT and not row.owner]
        if (
            not coded
            or any(row.owner for row in found[number])
            or held >= value.nbytes
            or value.until >= len(graph.other) - 1
        ):
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
    candidates = StorageCandidates(tuple(options), weights, (0,) * len(graph.values), tuple(saved_at))
    return make_profile(graph, candidates, forms=[0 if row else -1 for row in options])


def _make_rows(savers: Sequence[Saver], rows: Sequence[Row], level: str) -> Iterator[tuple[Saver, Row]]:
    """Yield each tensor that autograd saves, and its row. Tensors that somebody else keeps alive have rows and are no
    values; autocast's cast of a parameter is a value with such a row. A loss in chunks saves gradients, whose rows
    describe the tensors that torch's loss saves: these pairs are left out, since no level stores gradients.

    Raises:
        RuntimeError: a tensor has no row, or a row no tensor.
    """
    left = [row for row in rows if not row.codec.startswith(IN_CHUNKS)]
    in_chunks = len(left) < len(rows)
    next_row = 0
    for saver in savers:
        place = saver.saved.module, saver.saved.operator, saver.saved.role, tuple(saver.saved.shape)
        at = next_row
        while at < len(left) and (_row_key(left[at]) != place and left[at].owner):
            at += 1
        if at < len(left) and _row_key(left[at]) == place:
            yield saver, left[at]
            next_row = at + 1
        elif not in_chunks or saver.saved.role != "internal":
            raise _other(level)
    if any(not row.owner for row in left[next_row:]):
        raise _other(level)


def _row_key(row: Row) -> tuple[str, str, str, tuple[int, ...]]:
    return row.module, row.operator, row.role, row.shape


def _other(level: str) -> RuntimeError:
    return RuntimeError(
        f"the forward saves other tensors at level={level!r} than without: leave this level out of ways, or call "
        f"integrations.forecast(model, inputs, level={level!r}) to see the tensors that it stores"
    )
