"""``BitPlan``: the bits of each quantised tensor of one model, with the reason. ``plan_of`` makes it of a measurement:
the bits that change the gradient least within the level's bytes. ``PlannedBits`` is the policy that gives them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from statistics import median
from types import MappingProxyType
from typing import Any, Self

from rich.table import Table
from rich.text import Text

from actcore import GroupAffine, SavedTensor, allocate
from integrations._utils.checked_json import read_entry
from integrations._utils.rich_text import to_text
from integrations.planner.sensitivity.identity import Identity
from integrations.planner.sensitivity.measurement import Measurement, Sensitivity
from integrations.planner.sensitivity.rounding import WIDTHS
from integrations.policies.policy import FixedBits, SaveDecision
from integrations.tracing.attention import OPERATOR as ATTENTION


@dataclass(frozen=True)
class Allotment:
    """The bits of one stored copy.

    Attributes:
        identities: of the saved tensors that share it; several if they are views of one storage.
        bits: bits an element, 1 to 8.
        sensitivity: expected squared change of the gradient if codes were whole steps of the tensor's range, that is
            ``error * (2**bits - 1)**2``: the constant of the variance model.
        error: expected squared change of all parameters' gradients at these bits.
        numel: elements that are stored.
        nbytes: bytes at these bits, bounds included.
        why: the reason for the bits.
    """

    identities: tuple[Identity, ...]
    bits: int
    sensitivity: float
    error: float
    numel: int
    nbytes: int
    why: str


@dataclass(frozen=True)
class BitPlan:
    """Bits for a model's quantised tensors. ``str(plan)`` is a table.

    Attributes:
        allotments: one for each stored copy, in the order of saving.
        step: number of the forward in which it was measured.
        budget: bytes that all of them together may take.
        gradient: squared norm of the gradient in that step.
        gap: by how much the predicted error may exceed the least possible at this budget, as a fraction of that.
    """

    allotments: tuple[Allotment, ...]
    step: int
    budget: int
    gradient: float
    gap: float
    _bits: dict[Identity, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        bits = {identity: entry.bits for entry in self.allotments for identity in entry.identities}
        object.__setattr__(self, "_bits", bits)

    def bits(self, identity: Identity) -> int | None:
        """The bits of a saved tensor; ``None`` for one that did not exist when the plan was made."""
        return self._bits.get(identity)

    @property
    def nbytes(self) -> int:
        """Bytes that the planned tensors take, bounds included."""
        return sum(entry.nbytes for entry in self.allotments)

    @property
    def relative_error(self) -> float:
        """The predicted relative error of the whole gradient that rounding causes, as a Euclidean norm; NaN where no
        parameter got a gradient in the step that was measured."""
        error = sum(entry.error for entry in self.allotments)
        return float((error / self.gradient) ** 0.5) if self.gradient else math.nan

    @property
    def prediction(self) -> str:
        """The prediction in words."""
        if not self.gradient:
            return "the gradient's error is not known, since no parameter got a gradient in that step"
        return f"predicted relative error of the gradient {self.relative_error:.2g}"

    def require_modules(self, paths: Iterable[str], model: str) -> None:
        """Checks that each of the plan's tensors belongs to a module of the model.

        Raises:
            ValueError: some do not; the message names them.
        """
        known = {*paths}
        strange = [str(name) for entry in self.allotments for name in entry.identities if name.module not in known]
        if strange:
            listed = ", ".join(strange[:5]) + (f" and {len(strange) - 5} more" if len(strange) > 5 else "")
            raise ValueError(
                f"the plan must be of this model, but {model} has no modules for {len(strange)} of its tensors: "
                f"{listed}; load the state into the model that it was saved from, or make a new plan: "
                "handle.adapt(closure)"
            )

    # ---- plain values ----

    def plain(self) -> dict[str, Any]:
        """The plan as plain values, for a ``state_dict``."""
        allotments = [
            {**vars(entry), "identities": [list(identity) for identity in entry.identities]}
            for entry in self.allotments
        ]
        return {
            "allotments": allotments,
            "step": self.step,
            "budget": self.budget,
            "gradient": self.gradient,
            "gap": self.gap,
        }

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Self:
        """The plan that ``plain`` returned.

        Raises:
            ValueError: something is missing, or has another form.
        """
        try:
            plan = read_entry(cls, plain)
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"the state's plan must be what state_dict returned, of another form than {plain!r:.80}: {error}"
            ) from error
        for entry in plan.allotments:
            if not 1 <= entry.bits <= 8:
                raise ValueError(f"a plan's bits must be from 1 to 8, got {entry.bits!r} for {entry.identities}")
            if not entry.identities or entry.numel < 0 or entry.nbytes < 0:
                raise ValueError(f"a plan's entries must name tensors, of 0 elements and bytes or more, got {entry}")
            if entry.error < 0:
                raise ValueError(f"a plan's errors must be 0 or more, got {entry.error!r} for {entry.identities}")
        if plan.gradient < 0:
            raise ValueError(f"a plan's gradient must be a square's sum, 0 or more, got {plan.gradient!r}")
        return plan

    # ---- for people ----

    def table(self) -> Table:
        """The plan as a rich table, one line for each stored copy."""
        table = Table(title=self._title(), caption=self._caption(), caption_justify="left")
        table.add_column("tensor", overflow="fold")
        for heading in ("elements", "bits", "bytes", "sensitivity", "share of the error"):
            table.add_column(heading, justify="right")
        table.add_column("why", overflow="fold")
        whole = sum(entry.error for entry in self.allotments) or 1.0
        for entry in self.allotments:
            table.add_row(
                # A name may have brackets, which a string takes for markup.
                Text("\n".join(map(str, entry.identities))),
                f"{entry.numel:,}",
                str(entry.bits),
                f"{entry.nbytes:,}",
                f"{entry.sensitivity:.2g}",
                f"{entry.error / whole:.1%}",
                entry.why,
            )
        return table

    def _title(self) -> str:
        numel = sum(entry.numel for entry in self.allotments)
        bits = sum(entry.bits * entry.numel for entry in self.allotments) / max(1, numel)
        return f"Plan made in step {self.step}: {bits:.2f} bits an element, {self.nbytes:,} of {self.budget:,} bytes"

    def _caption(self) -> str:
        prediction = f"{self.prediction[0].upper()}{self.prediction[1:]}"
        return f"{prediction}; at most {self.gap:.1%} above the least possible sum of squares in these bytes."

    def __str__(self) -> str:
        return to_text(self.table())


@dataclass(frozen=True)
class PlannedBits:
    """The policy that gives quantised tensors the plan's bits. A tensor that the plan does not know, because control
    flow has changed, gets the level's."""

    fixed: FixedBits
    plan: BitPlan

    def decide(self, saved: SavedTensor) -> SaveDecision:
        """The codec for a tensor that autograd alone keeps alive, and the reason."""
        decision = self.fixed.decide(saved)
        if not isinstance(decision.codec, GroupAffine):
            return decision
        bits = self.plan.bits(Identity.of(saved))
        if bits is None:
            return decision
        return replace(decision, codec=replace(decision.codec, bits=bits), why=f"{decision.why}; bits by the plan")


def plan_of(measurement: Measurement, bits: int, step: int) -> BitPlan:
    """The plan with the least predicted error among those that take no more bytes than ``bits`` an element would.

    Args:
        measurement: finite, of one model.
        bits: the average, bounds of groups apart: the budget is what the same tensors take with ``bits`` each.
        step: number of the forward that was measured.
    """
    budget = sum(tensor.sizes[bits - 1] for tensor in measurement.tensors)
    known = [(tensor.costs[bits - 1], tensor.energies[bits - 1]) for tensor in measurement.tensors if tensor.costs]
    usual = median(cost / energy for cost, energy in known if energy) if any(energy for _, energy in known) else 1.0
    costs = [tensor.costs or tuple(usual * energy for energy in tensor.energies) for tensor in measurement.tensors]
    costs = [_with_bends(tensor, row) for tensor, row in zip(measurement.tensors, costs, strict=True)]
    solved = allocate(costs, [tensor.sizes for tensor in measurement.tensors], budget)
    return BitPlan(
        tuple(
            _allotment(tensor, row, WIDTHS[choice])
            for tensor, row, choice in zip(measurement.tensors, costs, solved.choices, strict=True)
        ),
        step,
        budget,
        measurement.gradient,
        solved.gap,
    )


# The model takes the gradient's change to be linear in the rounding error. At one bit each element becomes one of its
# group's two ends, and what is not linear bends: times so much for 1 bit, for 2 bits and so on. Found with ViT-tiny,
# BERT and encoders of 2 and 4 layers, whose error with all other bits is what the model says.
_BENDS = MappingProxyType({ATTENTION: (4.0, 1.5), "layer_norm": (2.0,), "rms_norm": (2.0,)})


def _with_bends(tensor: Sensitivity, costs: Sequence[float]) -> tuple[float, ...]:
    found = [bends for operator, bends in _BENDS.items() if any(one.operator == operator for one in tensor.identities)]
    most = [max(times) for times in zip_longest(*found, fillvalue=1.0)]
    return tuple(cost * times for cost, times in zip_longest(costs, most, fillvalue=1.0))


def _allotment(tensor: Sensitivity, costs: Sequence[float], bits: int) -> Allotment:
    error = costs[bits - 1]
    why = (
        f"its sensitivity is assumed to be the usual one: {tensor.why}" if tensor.why else "least error of the gradient"
    )
    return Allotment(
        tensor.identities, bits, error * (2**bits - 1) ** 2, error, tensor.numel, tensor.sizes[bits - 1], why
    )
