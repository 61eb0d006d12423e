"""The policy of an adaptive level: the level's own, with a plan's bits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from actcore import GroupAffine, SavedTensor
from integrations.planner.sensitivity.bit_plan import BitPlan
from integrations.planner.sensitivity.identity import Identity
from integrations.policies.policy import FixedBits, SaveDecision


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
