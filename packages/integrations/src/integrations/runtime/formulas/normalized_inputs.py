"""Formulas that one pass over a norm's stored input computes: the norm's result, its sum with another tensor, and ReLU,
SiLU or GELU of either.

The input of a batch or group norm is stored standardized by the norm's own statistics, so its codes are those of the
normalized input. If another stored form has replaced it before backward, each formula is computed separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from actcore import Kept, Layout
from actcore.replay import restore
from integrations._utils.plain_tensor_types import PLAIN
from integrations.policies.arguments import Arguments
from integrations.policies.norms import Normalizer, Standardized
from integrations.policies.standardizing import CHANNELS, activated
from integrations.runtime.formulas.formula import (
    Bound,
    Formula,
    Inner,
    Made,
    Operand,
    Place,
    Slot,
    Stored,
    There,
    explain_change,
    with_slots,
)
from integrations.runtime.formulas.operators import Again
from integrations.tracing.call import Call
from integrations.tracing.norm_inputs import find_removed_epsilon, last_written

NORM, ADD = "norm", "add"
"""What a formula computes that is none of the functions of ``standardizing.activated``; see ``Formula.after``."""

_AFFINE = {F.batch_norm: (3, 4), torch.batch_norm: (1, 2), F.group_norm: (2, 3), torch.group_norm: (2, 3)}
"""The positions of weight and bias."""


def find_norm(call: Call) -> tuple[list[Tensor], set[int], Again] | None:
    """How backward computes a norm by given statistics; ``None`` for other calls.

    Returns:
        the tensors among the arguments; the indices of those that backward reads; and the call, with a ``Slot`` for
            each of these, and one after all others for the statistics.
    """
    affine = _AFFINE.get(call.function)
    if affine is None:
        return None
    tensors: list[Tensor] = []
    args = with_slots(call.given.args, tensors)
    given = Arguments(args, {key: with_slots(value, tensors) for key, value in call.given.kwargs.items()})
    places = ((0, "input"), (affine[0], "weight"), (affine[1], "bias"))
    x, weight, bias = (given.get(*one) for one in places)
    slots = [one for one in (x, weight, bias) if isinstance(one, Slot)]
    plain = all(type(tensors[one.index]) in PLAIN and tensors[one.index].is_contiguous() for one in slots[1:])
    if not isinstance(x, Slot) or x.index != 0 or type(tensors[0]) not in PLAIN or not plain:
        return None
    groups = given.get(1, "num_groups") if call.name == "group_norm" else CHANNELS
    epsilon = find_removed_epsilon(call.function, call.given.args, call.given.kwargs)
    made = Again(_normalized_by, (x, Slot(len(tensors)), weight, bias, groups, epsilon), {})
    return tensors, {one.index for one in slots}, made


def hold_statistics(operand: Operand | None) -> There | None:
    """Return the statistics by which an operand is stored, if they are those of the norm that has just returned."""
    region = operand.region() if isinstance(operand, Stored) else None
    value, statistics = None if region is None else region.value, last_written()
    if statistics is None or value is None or not isinstance(value.codec, Standardized):
        return None
    assert isinstance(operand, Stored)
    assert region is not None
    own = value.payload[-1] is statistics and operand.place == Place(value.layout, region.start)
    return There(Kept.of(statistics)) if own else None


def is_like(operand: Operand | None, result: Tensor) -> bool:
    """Whether a result has the dtype and layout of an operand that is stored."""
    region = operand.region() if isinstance(operand, Stored) else None
    if region is None or not isinstance(operand, Stored):
        return False
    return region.dtype == result.dtype and operand.place.layout == Layout.of(result)


def find_after(
    call: Call, made: Again, operands: Sequence[Operand], tensors: Sequence[Tensor], result: Tensor, place: Place
) -> tuple[str, int] | None:
    """Return what a call does after a norm, and which of its operands comes from there; ``None`` for other calls.

    Args:
        call, made: the call, and how backward repeats it.
        operands, tensors: how the tensors that it reads are restored, and these tensors, in the same order.
        result, place: its result, and where that lies.
    """
    function = _name_function(call)
    sums = function == ADD
    if not function or len(operands) != 1 + sums or (sums and (len(made.args) != 2 or made.kwargs)):
        return None
    expected = (NORM,) if sums else (NORM, ADD)
    for at, operand in enumerate(operands):
        if not isinstance(operand, Made):
            continue
        formula = operand.formula
        if formula.after is None or formula.after[0] not in expected:
            continue
        alike = all(one.dtype == result.dtype and one.shape == result.shape for one in tensors)
        if alike and formula.place.layout == place.layout and operand.place == formula.place:
            return function, at
    return None


def compute_after(bound: Bound) -> Tensor | None:
    """Compute a formula that follows a norm in one pass over the norm's stored input.

    Returns:
        its result; ``None`` if another stored form has replaced that input, so that each formula is computed by itself.
    """
    function, added = "none", None
    while True:
        formula = bound.formula
        assert formula.after is not None
        kind, place = formula.after
        if kind == NORM:
            break
        if kind == ADD:
            added = bound.held[1 - place], formula
        else:
            function = kind
        bound = bound.held[place].bound
    stored, statistics = bound.held[0].view.region.value, bound.held[-1].tensor
    if stored is None or not isinstance(stored.codec, Standardized):
        return None
    if stored.payload[-1].data_ptr() != statistics.data_ptr():
        return None
    _, _, weight, bias, _, epsilon = formula.call.args
    weight, bias = (None if one is None else _restored(bound.held[one.index], formula) for one in (weight, bias))
    return activated(stored, weight, bias, None if added is None else _restored(*added), function, epsilon)


def _restored(held: Any, formula: Formula) -> Tensor:
    """An operand of a formula."""
    try:
        found: Tensor = restore(held)
    except RuntimeError as error:
        if not isinstance(held, Inner):  # which has said it
            explain_change(error, formula.names[0])
        raise
    return found


def _name_function(call: Call) -> str:
    """The name that ``standardizing.activated`` has for an activation; ``ADD`` for a sum; empty for others."""
    if call.name == "gelu":
        approximate = call.given.get(1, "approximate", "none")
        return {"none": "gelu", "tanh": "gelu_tanh"}.get(approximate, "")
    return call.name if call.name in ("relu", "silu", ADD) else ""


def _normalized_by(
    x: Tensor, statistics: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, epsilon: float
) -> Tensor:
    """A norm by the means and deviations of its input, ``Float[2, count]``, and what these leave out of its epsilon."""
    mean, deviation = statistics
    factor = (deviation.square() + epsilon).rsqrt() if epsilon else 1 / deviation
    normal = Normalizer(groups, len(mean)).restored(
        x.to(statistics.dtype, copy=True), torch.stack([-mean * factor, factor])
    )
    shape = [-1 if dim == 1 else 1 for dim in range(x.dim())]
    if weight is not None:
        normal.mul_(weight.view(shape))
    if bias is not None:
        normal.add_(bias.view(shape))
    return normal.to(x.dtype)
