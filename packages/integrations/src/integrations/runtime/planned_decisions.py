"""``Placed`` and ``Numbered``: what a plan says of the tensors of one forward, by their sites alone, and by a tape or
what follows the forward in its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from integrations._utils.torch_internals import DisableTorchFunction
from integrations.capture.dispatch.memory import Geometry, is_plain
from integrations.capture.graphs.schedule import Schedule
from integrations.policies.stores import WAITING, HostCopies, Store
from integrations.runtime.plan_decisions import PlanDecision
from integrations.runtime.repeating.call_follower import CallFollower
from integrations.runtime.repeating.calls import UNPLANNED, Exactly, KnownSite, Packed
from integrations.runtime.repeating.following import Following
from integrations.runtime.repeating.segments import Results
from integrations.tracing.checkpoints import Boundary
from integrations.tracing.storage.regions import View
from integrations.tracing.storage.storage_policy import StoragePolicy, storage_policy
from integrations.tracing.tensors import find_local

if TYPE_CHECKING:
    from integrations.runtime.replay_cache import Site
    from integrations.runtime.session import Session

_DECIDED = "a mask was computed from it, or an operator would amplify its errors: kept exactly"


class WithoutStore(NamedTuple):
    """How values wait that a plan has no store for.

    Attributes:
        kept: how a kept value waits.
        recomputed: how a recomputed value waits.
        later: whether a recomputed value is stored once it has been recomputed. Otherwise it waits as it is until
            backward has read it.
        rounded: whether a kept value may be rounded.
    """

    kept: StoragePolicy
    recomputed: StoragePolicy
    later: bool
    rounded: bool


class _PlanDecisions:
    """What a plan says of the tensors that autograd saves in one forward.

    Args:
        session: the session that stores them.
        schedule: what the forward follows.
        others: how values wait that the schedule has no store for.
    """

    def __init__(self, session: Session, schedule: Schedule, others: WithoutStore) -> None:
        self._session, self._schedule, self._others = session, schedule, others
        self._unplanned = PlanDecision(session.way)
        self._known: dict[tuple[Store | None, bool, HostCopies], PlanDecision] = {}

    def _of(self, value: int) -> PlanDecision:
        """What becomes of a tensor in a value's memory."""
        if value == UNPLANNED:
            return self._unplanned
        schedule = self._schedule
        value = schedule.final(value)
        key = schedule.stores.get(value), value in schedule.recomputed, schedule.copies.get(value, WAITING)
        planned = self._known.get(key)
        if planned is None:
            planned = self._known[key] = self._decide(*key)
        return planned

    def _decide(self, store: Store | None, recomputed: bool, copies: HostCopies) -> PlanDecision:
        if store is not None:
            return PlanDecision(storage_policy(store, self._session.level, copies))
        return PlanDecision(self._others.recomputed if recomputed else self._others.kept)


class Placed(_PlanDecisions):
    """The decisions by the sites of tensors, for a forward that recomputes nothing. Its sites know the values of all
    that it saves, so it needs no tape. A forward that turns out to be another goes on as it would without a plan.

    Attributes:
        is_other: whether the forward has saved a tensor that no forward with a tape has saved.
    """

    values = placeholder = meet = None

    def __init__(self, session: Session, schedule: Schedule, others: WithoutStore) -> None:
        super().__init__(session, schedule, others)
        self.is_other = False

    def recomputes(self, tensor: Tensor) -> bool:
        """Return ``False``: nothing is recomputed here."""
        return False

    def of(self, tensor: Tensor, site: Site | None) -> PlanDecision:
        """What becomes of a tensor."""
        if site is None:
            self.is_other = True
            return self._unplanned
        return self._of(UNPLANNED if site.value is None or not is_plain(tensor) else site.value)


class Numbered(_PlanDecisions):
    """The decisions by what follows the forward.

    Args:
        session, schedule, others: as for ``_PlanDecisions``.
        following: the tape, or what follows the calls in its place.
        rounds: whether what a repetition reads may be rounded.

    Attributes:
        following: as given; the tape that has taken over.
        values: the plan's values, by the addresses of their storages.
        placeholder, meet: see ``PlanDecisions``.
        placed: whether each tensor that was asked for had a site.
    """

    def __init__(
        self, session: Session, schedule: Schedule, others: WithoutStore, following: Following, rounds: bool
    ) -> None:
        super().__init__(session, schedule, others)
        self.following, self._rounds = following, rounds
        self.values, self.placeholder = following.values, following.handle
        self.meet = following.meet if isinstance(following, CallFollower) else None
        self.placed = True

    def recomputes(self, tensor: Tensor) -> bool:
        """Return whether backward recomputes the tensor."""
        part = find_local(tensor)
        value = self.following.value_of(tensor if part is None else part)
        return value != UNPLANNED and self._schedule.is_recomputed(value)

    def of(self, tensor: Tensor, site: Site | None) -> PlanDecision:
        """What becomes of a tensor."""
        value = self.following.value_of(tensor)
        if site is None:
            self.placed = False
            if not isinstance(self._session.tracker.call, Boundary):
                value = self.following.meet_unplaced(tensor, value)
        return self._of(value)

    def recomputation(self, read: Sequence[Tensor], made: Sequence[Tensor]) -> Results | None:
        """How backward recomputes what an operator has just made. ``None`` if it does not; if what the operator read
        waits for others in another form than it has when recomputed; or if that would stay alive for this alone."""
        schedule, values = self._schedule, self._schedule.graph.values
        self.following.meet_made(made)
        first = self.following.value_of(made[0])
        if first == UNPLANNED or schedule.store_of(first) is not None or values[first].saved < 0:
            return None
        for tensor in read:
            value = self.following.value_of(tensor)
            if value == UNPLANNED or value in schedule.becomes:
                return None
            if schedule.is_recomputed(value) and schedule.store_of(value) is not None:
                return None
        return self.following.recomputation(made)

    def _decide(self, store: Store | None, recomputed: bool, copies: HostCopies) -> PlanDecision:
        planned = super()._decide(store, recomputed, copies)
        if not recomputed:
            return planned
        later = store is not None or self._others.later
        return planned._replace(placeholder=self.placeholder, waits=later, aside=self._rounds)


class Read(Exactly):
    """Keeps what the repetitions of one forward read, in the same form in which autograd keeps it.

    Args:
        session, schedule: as for ``_PlanDecisions``.
        rounded: whether a value that the plan keeps without a store may be rounded.
    """

    def __init__(self, session: Session, schedule: Schedule, rounded: bool) -> None:
        super().__init__()
        self._session, self._schedule, self._rounded = session, schedule, rounded

    def read(self, tensor: Tensor, value: int, known: KnownSite | None = None) -> Packed:
        """The tensor's stored form."""
        key = value, Geometry.of(tensor), tensor.requires_grad
        found = self.known.get(key)
        if found is None:
            final, values = self._schedule.final(value), self._schedule.graph.values
            decided = values[value].exact and self._may_be_rounded(final)
            with DisableTorchFunction(), torch.no_grad():
                stored = self._session.pack_held(tensor, _DECIDED if decided else "", known)
            found = self.known[key] = stored.beside() if isinstance(stored, View) else stored
            if values[final].saved < 0:  # autograd alone would not keep it
                self._session.records[-1].original_bytes = 0
        return found

    def note(self, known: KnownSite) -> None:
        """Tells of a tensor that something else keeps alive, as if it were held."""
        site = known.site
        if site is not None and site.record is not None:
            self._session.occurrences[site.place] = site.following
            self._session.records.append(site.record)

    def _may_be_rounded(self, value: int) -> bool:
        store = self._schedule.stores.get(value)
        return self._rounded if store is None else not store.exact
