"""What is known of a saved tensor before its elements are looked at, kept from one forward to the next.

A forward saves the same tensors as the one before, in most models. So each description is made once, and its policy,
which is a function of nothing else, asked once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from actcore import SavedTensor
from integrations.rules.policy import Decision, Policy
from integrations.storing.extent import Extent
from integrations.storing.records import Record, kept_by

if TYPE_CHECKING:
    from integrations.runtime.site import Site

_PLANS = 16  # whose tensors are remembered
_MOST_OTHERS = 2  # forwards that are not the plan's, after which each has a tape

Place = tuple[str, str, str]
"""Module, operator and role."""


class SavedTensorSpec:
    """One saved tensor of a model.

    Attributes:
        saved: its description.
        identity: of its noise.
        extent: of its memory.
        taken: what was decided last; ``None`` before.
        site: of the tensor among those of a forward; ``None`` before one has saved it.
    """

    __slots__ = ("_kept", "_policy", "extent", "identity", "saved", "site", "taken")

    def __init__(self, saved: SavedTensor, extent: Extent) -> None:
        self.saved = saved
        self.identity = f"{saved.module}\0{saved.operator}\0{saved.role}\0{saved.occurrence}"
        self.extent = extent
        self._policy: Policy | None = None  # that has decided last
        self.taken: Decision | None = None
        self._kept: Record | None = None
        self.site: Site | None = None

    def decision(self, policy: Policy) -> Decision:
        """How such a policy has it stored if autograd alone keeps it alive. A tensor has the same one from one forward
        to the next, so it is asked once."""
        if self.taken is None or self._policy is not policy:
            self._policy, self.taken = policy, policy.decide(self.saved)
        return self.taken

    def kept_by(self, owner: str) -> Record:
        """The record if somebody else keeps it alive anyway, the same one in each forward: nothing of it changes."""
        if self._kept is None or self._kept.owner != owner:
            self._kept = kept_by(owner, self.saved)
        return self._kept

    def fits(self, tensor: Tensor) -> bool:
        """Whether the tensor is as the description says."""
        saved = self.saved
        return (
            tensor.dtype is saved.dtype
            and tensor.shape == saved.shape
            and tensor.stride() == saved.strides
            and tensor.requires_grad is saved.requires_grad
            and tensor.device == saved.device
        )


class Specs:
    """The specs of one model under one policy, in forwards that follow one plan or none. Threads may share them: each
    entry is replaced as a whole.

    Attributes:
        policy: decides the codecs.
        first: the site of what the last forward saved first; ``None`` before there was one.
        placed: how many tensors the last forward with a tape has saved, if the site of each knows which value of the
            plan it is of; else ``None``.
        others: how many forwards were another than the plan's.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.first: Site | None = None
        self.placed: int | None = None
        self.others = 0
        self._specs: dict[tuple[Place, int], SavedTensorSpec] = {}

    @property
    def need_no_tape(self) -> bool:
        """Whether sites are enough to follow the plan: not where forwards go to and fro between the plan's and another,
        which a tape alone tells to be one."""
        return self.placed is not None and self.others < _MOST_OTHERS

    def note_other(self) -> None:
        """A forward was another than the plan's: the next one has a tape, which tells where."""
        self.placed = None
        self.others += 1

    def of(self, tensor: Tensor, place: Place, occurrence: int) -> SavedTensorSpec:
        """The spec for a strided tensor: the one of the forward before, unless shape, strides, dtype, device or the
        need of a gradient have changed."""
        spec = self._specs.get((place, occurrence))
        if spec is None or not spec.fits(tensor):
            module, operator, role = place
            saved = SavedTensor.of(tensor, operator=operator, role=role, module=module, occurrence=occurrence)
            spec = SavedTensorSpec(saved, Extent.of(tensor))
            self._specs[place, occurrence] = spec
        return spec


class PlannedSpecs:
    """The specs of one model, for each of the last plans that its forwards have followed."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[object, Specs]] = {}  # by the plan's id, with the plan, so that it stays its own

    def under(self, policy: Policy, plan: object = None) -> Specs:
        """Those for forwards that follow a plan, or none: the ones of the forward before, unless its policy was
        another."""
        found = self._found.pop(id(plan), None)
        if found is None or found[1].policy != policy:
            found = plan, Specs(policy)
        self._found[id(plan)] = found  # the last one, and the first is the one that was not followed for longest
        if len(self._found) > _PLANS:
            self._found.pop(next(iter(self._found)), None)
        return found[1]
