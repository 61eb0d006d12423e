"""What is known of a saved tensor before its elements are looked at, kept from one forward to the next.

In most models a forward saves the same tensors as the one before. So each description is made once, and the policy,
which depends on nothing else, is asked once. A tensor that keeps its elements in other tensors, be it sparse, nested or
a wrapper subclass, has no such description: ``record_of_compound`` keeps it exactly. Of a DTensor, this rank's part has
one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from actcore import SavedTensor
from integrations.policies.policy import Policy, SaveDecision
from integrations.tracing.storage.records import Record, kept_by
from integrations.tracing.storage.storage import Storages
from integrations.tracing.tensors import Extent, find_storages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.fx import GraphModule

    from integrations.policies.levels import Level
    from integrations.runtime.formulas.formula import Noted
    from integrations.runtime.repeating.call_trace import CallTrace
    from integrations.runtime.replay_cache import Site

_PLANS = 16  # plans whose tensors are remembered
_MOST_OTHERS = 2  # after so many forwards other than the plan's, each forward has a tape

Place = tuple[str, str, str]
"""Module, operator and role."""

MADE = ("internal", "result")
"""The roles of tensors that the call has made which saves them."""


class SavedTensorSpec:
    """One saved tensor of a model.

    Attributes:
        saved: its description.
        identity: what its noise is drawn by.
        extent: the extent of its memory.
        taken: what was decided last; ``None`` before.
        site: its site in a forward; ``None`` before a forward has saved it.
    """

    __slots__ = ("_kept", "_policy", "extent", "identity", "saved", "site", "taken")

    def __init__(self, saved: SavedTensor, extent: Extent) -> None:
        self.saved = saved
        self.identity = f"{saved.module}\0{saved.operator}\0{saved.role}\0{saved.occurrence}"
        self.extent = extent
        self._policy: Policy | None = None  # the policy that decided last
        self.taken: SaveDecision | None = None
        self._kept: Record | None = None
        self.site: Site | None = None

    def decision(self, policy: Policy) -> SaveDecision:
        """How the policy stores the tensor if autograd alone keeps it alive. The policy is the same from one forward to
        the next, so it is asked once."""
        if self.taken is None or self._policy is not policy:
            self._policy, self.taken = policy, policy.decide(self.saved)
        return self.taken

    def kept_by(self, owner: str) -> Record:
        """The record of the tensor where something else keeps it alive. Every forward gets the same one, since nothing
        in it changes."""
        if self._kept is None or self._kept.owner != owner:
            self._kept = kept_by(owner, self.saved)
        return self._kept

    def fits(self, tensor: Tensor) -> bool:
        """Whether the tensor matches the description."""
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
        placed: the tensors that the last forward with a tape saved, in order, if the site of each knows its value in
            the plan; else ``None``.
        trace: the calls of the last forward with a tape, if the next can be followed by them; else ``None``.
        untraced: how many forwards were recorded in vain.
        nodes: how many autograd nodes the last forward with a tape has made; ``None`` before there was one.
        others: how many forwards were other than the plan's.
        noted: the results that the last forward has noted for its formulas.
        hooks: the level of the last forward, with its saved-tensor hooks; ``None`` before there was one.
        region_records: by what was noted of the compiled regions in a forward: the records of what they save.
        region_places: by the numbers of the compiled regions in a forward: the modules in which they run.
        only_regions: whether compiled regions alone have saved tensors in the last forward.
        listens: whether the next forward notes in which modules compiled regions run.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.first: Site | None = None
        self.placed: tuple[SavedTensor, ...] | None = None
        self.trace: CallTrace | None = None
        self.untraced = 0
        self.nodes: int | None = None
        self.others = 0
        self.noted: Sequence[Noted] = ()
        self.hooks: tuple[Level, tuple[GraphModule, GraphModule]] | None = None
        self.region_records: dict[tuple[int, ...], list[Record]] = {}
        self.region_places: dict[tuple[int, ...], list[str]] = {}
        self.listens = True
        self.only_regions = True
        self._specs: dict[tuple[Place, int], SavedTensorSpec] = {}

    @property
    def need_no_tape(self) -> bool:
        """Whether sites are enough to follow the plan. They are not if forwards alternate between the plan's and
        another, since only a tape tells the two apart."""
        return self.placed is not None and self.others < _MOST_OTHERS

    @property
    def may_trace(self) -> bool:
        """Whether the calls of a forward may tell whether it is the plan's: not where forwards alternate, as above, nor
        where several could not be recorded."""
        return self.others < _MOST_OTHERS and self.untraced < _MOST_OTHERS

    def saves(self, values: frozenset[int]) -> bool:
        """Whether the last forward has saved tensors of all these values while the calls ran that made them."""
        site, left, seen = self.first, set(values), set[int]()
        while left and site is not None and id(site) not in seen:  # sites of older forwards may lead back
            seen.add(id(site))
            if site.role in MADE and not site.owner:
                left -= {site.value}
            site = site.next
        return not left

    def saves_others(self, saved: Sequence[SavedTensor]) -> bool:
        """Whether a forward without a tape has saved other tensors than the last one with a tape. Strides do not count:
        inputs of another memory format, or cut out of a larger tensor, take the same path."""
        placed = self.placed
        return placed is not None and (
            len(placed) != len(saved)
            or any(one is not other and _seen(one) != _seen(other) for one, other in zip(placed, saved, strict=True))
        )

    def note_other(self) -> None:
        """Notes a forward other than the plan's. The next forward has a tape, which tells where it differs."""
        self.placed = self.trace = None
        self.others += 1

    def of(self, tensor: Tensor, place: Place, occurrence: int) -> SavedTensorSpec:
        """The spec of a strided tensor: that of the forward before, unless shape, strides, dtype, device or
        ``requires_grad`` have changed."""
        spec = self._specs.get((place, occurrence))
        if spec is None or not spec.fits(tensor):
            module, operator, role = place
            saved = SavedTensor.of(tensor, operator=operator, role=role, module=module, occurrence=occurrence)
            spec = SavedTensorSpec(saved, Extent.of(tensor))
            self._specs[place, occurrence] = spec
        return spec


def _seen(saved: SavedTensor) -> tuple[object, ...]:
    """What tells which operator of a forward has saved a tensor."""
    return saved.module, saved.operator, saved.role, saved.occurrence, saved.shape, saved.dtype


class PlannedSpecs:
    """The specs of one model, for each of the last plans that its forwards have followed."""

    def __init__(self) -> None:
        # By the plan's id; the plan is held, so that the id stays its own.
        self._found: dict[int, tuple[object, Specs]] = {}

    def under(self, policy: Policy, plan: object = None) -> Specs:
        """The specs for forwards that follow a plan, or none: those of the forward before, unless its policy was
        another."""
        found = self._found.pop(id(plan), None)
        if found is None or (found[1].policy is not policy and found[1].policy != policy):
            found = plan, Specs(policy)
        # Moves it to the end, so that the first entry is the plan that was not followed for longest.
        self._found[id(plan)] = found
        if len(self._found) > _PLANS:
            self._found.pop(next(iter(self._found)), None)
        return found[1]


def record_of_compound(
    tensor: Tensor,
    place: Place,
    occurrence: int,
    holder: Callable[[torch.UntypedStorage], str],
    storages: Storages,
    why: str = "",
) -> Record:
    """The record of a tensor that keeps its elements in others: it is kept exactly.

    Args:
        tensor, place, occurrence: the tensor, its place, and how many tensors were saved there before it.
        holder: tells what keeps a storage alive besides autograd, in words; empty for nothing.
        storages: the storages of the forward, of which each counts once.
        why: why it is kept; empty if it is because it has no storage.
    """
    saved = _described(tensor, place, occurrence)
    parts = find_storages(tensor)
    holders = [holder(storage) for storage in parts]
    if holders and all(holders):
        return kept_by(holders[0], saved)
    free = [storage for storage, held in zip(parts, holders, strict=True) if not held]
    nbytes = sum(storages.original_bytes(storage) for storage in free)
    why = why or f"{type(tensor).__name__} of layout {tensor.layout} has no storage of its own: kept exactly"
    return Record(saved, "kept", why, "", nbytes, nbytes)


def _described(tensor: Tensor, place: Place, occurrence: int) -> SavedTensor:
    module, operator, role = place
    if tensor.is_nested and tensor.layout is torch.strided:  # such a tensor has neither shape nor strides to ask for
        shape = torch.Size((tensor.size(0),))
        return SavedTensor(shape, tensor.dtype, (), tensor.device, operator, role, module, occurrence)
    return SavedTensor.of(tensor, operator=operator, role=role, module=module, occurrence=occurrence)
