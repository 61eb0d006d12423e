"""What a forward decided of each saved tensor, for the next one to do again without deciding anew.

A forward saves the same tensors in the same order as the one before, in most models. So the ``Site`` of each leads to
that of the tensor that was saved after it, and of this one the next forward only has to see that it is the same: the
function that is called and what the tensor is to it, the module that calls it and how many came from there before,
shape, strides, dtype and device, who keeps the memory alive, and of a plan the value. All that the decision follows
from is compared, and nothing is taken by its place in the order: that only says with what to compare. Where something
differs, this tensor goes the full way, which finds or makes its site, and the next is expected to be the one that came
after that.

``actcore.replay.Replay`` compares, and does what is one call of a codec or none; the rest is left to the session.
"""

from __future__ import annotations

import copy
import os
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from actcore import Compressed, GroupAffine, Kept, in_cuda_graph
from actcore.codec import as_int64
from actcore.noise import identity_of, step_key
from actcore.replay import Replay, bind_replay
from integrations.saved.arguments import ASSUMED
from integrations.saved.calls import Call
from integrations.saved.forms import Packed
from integrations.saved.modules import CALL, innermost
from integrations.saved.owners import BEFORE
from integrations.saved.recipes import Place, Recipe
from integrations.saved.records import Record
from integrations.saved.regions import Exact, LastRestored, Region, View, lazy_of
from integrations.saved.storage import Entry

if TYPE_CHECKING:
    from integrations.saved.session import Session

FORCED_OFF = os.environ.get("INTEGRATIONS_REPLAY") == "0"
"""Whether every tensor goes the full way: results are the same, and a test of either is one of both."""

ALONE, OF_KEPT, OF_VALUE, BESIDE_SIGN, BESIDE_KEPT = range(5)
"""What was saved of a tensor's memory before it: nothing; all of it, kept, or encoded with the same codec; its signs;
what is kept. In the order of ``Sharing`` in ``csrc/bindings/replay_stores.cpp``."""


class Site:
    """A saved tensor of a forward, and what it has to be for the same to be done with it again. Threads may share it:
    once it is found, nothing of it changes but ``next``.

    Attributes:
        recipe: its description, of which these are parts: shape, strides, dtype, device, requires_grad.
        plan: that the forward followed; ``None`` for none.
        function: that saves it; ``None`` where nobody saw a call, or where its rule depends on its arguments.
        place, module, role, occurrence: where it is saved, and how many were saved there before.
        following: the number of the next one there.
        caller: the module, weakly, where it is the innermost whose forward runs; else ``None``.
        owner: who keeps it alive anyway; empty if only autograd does.
        value: the plan's number of the memory that it is in; ``None`` for none.
        next: the site of the tensor that was saved after it; ``None`` for the last.
        form: whether it is encoded (``True``) or kept (``False``), by one call or none; ``None`` for what the session
            has to see to.
        sharing: what was saved of its memory before, one of ``ALONE`` and so on.
        record, region, held: as they were made then, to be copied; of an owned tensor, the record itself.
        arguments: of the codec's operator: bits, elements of a group, whether to round at random, and the seed.
        fields: of the stored form, but for the payload.
        noise: the part of the stream that is the same in each forward.
        flat: shape and strides as which it is encoded, where it is not contiguous.
    """

    __slots__ = (
        "arguments", "caller", "device", "dtype", "fields", "flat", "following", "form", "function", "held", "module",
        "next", "noise", "occurrence", "owner", "place", "plan", "recipe", "record", "region", "requires_grad", "role",
        "shape", "sharing", "strides", "value",
    )  # fmt: skip

    def __init__(self, recipe: Recipe, place: Place, occurrence: int, call: Call | None, owner: str) -> None:
        saved = recipe.saved
        self.recipe, self.place, self.occurrence, self.following = recipe, place, occurrence, occurrence + 1
        self.module, _, self.role = place
        self.function, self.owner = _compared(call), owner
        self.shape, self.strides, self.dtype = saved.shape, saved.strides, saved.dtype
        self.device, self.requires_grad = saved.device, saved.requires_grad
        self.caller: weakref.ref[nn.Module] | None = None
        self.plan: object = None
        self.value: int | None = None
        self.next: Site | None = None
        self.form: bool | None = None
        self.sharing = ALONE
        self.record: Record | None = recipe.kept_by(owner) if owner else None
        self.region: Region | None = None
        self.held: View | Exact | None = None
        self.arguments: tuple[int, int, bool, int] | None = None
        self.fields: dict[str, object] | None = None
        self.flat: tuple[tuple[int, ...], tuple[int, ...]] | None = None
        self.noise = 0

    def is_of(self, call: Call | None, owner: str, plan: object, value: int | None) -> bool:
        """Whether a tensor of the same recipe is as this one."""
        return self.function is _compared(call) and self.owner == owner and self.plan is plan and self.value == value

    def learn(self, record: Record, packed: Packed, entry: Entry, seed: int) -> None:
        """Notes how the tensor was stored, if that is one codec's call or none.

        Args:
            record: of it.
            packed: what autograd holds in its place.
            entry: what is known of its memory now.
            seed: of the noise.
        """
        if type(packed) is Exact and packed.region is not None and record.codec == "kept":
            region = packed.region
            if all(other.kept is not None for other in entry.alive()) and record.stored_bytes == record.original_bytes:
                self.sharing = ALONE if record.original_bytes else BESIDE_KEPT
                self.held = Exact(None, None)  # type: ignore[arg-type]
                self.record, self.region = copy.copy(record), _template(region)
                self.form = False
        if type(packed) is View and not packed.sign and len(entry.alive()) == 1:
            self._learn_view(record, packed, seed)

    def _learn_view(self, record: Record, packed: View, seed: int) -> None:
        region, layout = packed.region, self.recipe.extent.layout
        if not region.dense or region.numel != self.recipe.extent.numel or packed.offset != region.start:
            return
        value = region.value
        own = region.record is record
        if region.kept is not None:
            self.sharing = OF_KEPT
        elif value is None or type(value.codec) is not GroupAffine or record.host:
            return
        else:
            self.sharing = OF_VALUE if not own else BESIDE_SIGN if region.sign is not None else ALONE
            codec = value.codec
            self.arguments = (codec.bits, codec.group_size, codec.rounding == "stochastic", as_int64("seed", seed))
            self.fields = {"codec": codec, "payload": (), "layout": layout, "dtype": value.dtype, "sound": True}
            self.noise = identity_of(self.recipe.identity)
        self.record, self.region = copy.copy(record), _template(region)
        self.held = held = copy.copy(packed)
        held.region = None  # type: ignore[assignment]
        self.flat = None if layout.contiguous else (region.layout.shape, region.layout.strides)
        self.form = True


def _compared(call: Call | None) -> Any:
    """The function by which a call is known again."""
    return None if call is None or call.name in ASSUMED else call.function


def _template(region: Region) -> Region:
    """A region's like that holds nothing."""
    template = copy.copy(region)
    template.value = template.sign = template.kept = template.lent = template.record = template.sign_record = None
    template.last = None  # type: ignore[assignment]
    template.waiting = 0
    return template


class Sites:
    """The sites of one session: those of the forward before, which it follows, and those that it finds.

    Args:
        session: whose tensors they are of.
        watched: whether each tensor is to go the full way, since somebody looks on.

    Attributes:
        watched: as given.
    """

    def __init__(self, session: Session, watched: bool) -> None:
        self._session: Session = weakref.proxy(session)
        self.watched = watched or FORCED_OFF
        self._replay: Any = None  # before the first tensor is saved

    def pack(self, tensor: Tensor) -> Packed | None:
        """Stores a tensor as the forward before has; ``None`` where it has to go the full way."""
        if self.watched:
            return None
        if self._replay is None:
            self._replay = self._begun()
        packed: Packed | None = self._replay.pack(tensor)
        return packed

    def end(self) -> None:
        """The session is left. What it has in C leads back to it."""
        self.watched, self._replay = True, None

    def site_of(
        self,
        recipe: Recipe,
        place: Place,
        occurrence: int,
        call: Call | None,
        owner: str,
        storage: torch.UntypedStorage,
    ) -> Site | None:
        """The site of a tensor that goes the full way: the one that it had, or a new one; ``None`` where none is asked
        for."""
        if self._replay is None:
            return None
        session, site = self._session, recipe.site
        plan, value = (None, None) if session.fates is None else (session.fates.plan, session.fates.values)
        number = None if value is None else value.get(storage._cdata)
        if site is None or site.form is None or not site.is_of(call, owner, plan, number):
            site = Site(recipe, place, occurrence, call, owner)
            site.plan, site.value = plan, number
            caller = innermost()
            site.caller = None if caller is None or session.paths.path_of(caller) != place[0] else weakref.ref(caller)
        return site

    def note(
        self, site: Site, tensor: Tensor, storage: torch.UntypedStorage, call: Call | None, packed: Packed
    ) -> None:
        """A tensor went the full way: the next one is expected to be the one that came after this."""
        session = self._session
        entry = None if site.owner or site.form is not None else session.storages.entries.get(storage)
        if entry is not None and self._is_repeatable(tensor, site.recipe, call):
            site.learn(session.records[-1], packed, entry, session.level.seed)
        site.recipe.site = site
        if self._replay.note(site):
            session.recipes.begin_with(site)

    def _is_repeatable(self, tensor: Tensor, recipe: Recipe, call: Call | None) -> bool:
        """Whether what was done with a tensor follows from what its site is compared by, and from nothing else: not
        from other arguments of its call, from how its elements are read, or from what a plan's tape was ready for."""
        if call is None or recipe.asks_call or any(lazy_of(tensor)):
            return False
        fates = self._session.fates
        return fates is None or fates.of(tensor).again is None

    def _begun(self) -> Any:
        session, fates = self._session, self._session.fates
        tracker, owners, entries = session.tracker, session.owners, session.storages.entries
        return Replay(
            tracker=tracker,
            occurrences=session.occurrences,
            holders=owners.holders,
            foreign=tracker.foreign.by_address,
            exposed=tracker.exposed.by_address,
            due=session.announced.due_by_address,
            records=session.records,
            entries=entries.by_address,
            lent=session.storages.last,
            dtype=owners.dtype,
            values=None if fates is None else fates.values,
            store=session.store,
            module=session.module_of_call,
            owner=session.owner,
            capturing=in_cuda_graph,
            put=entries.put,
            first=session.recipes.first(None if fates is None else fates.plan),
            step=step_key(session.step, session.rank),
        )


BOUND = {
    "Tensor": Tensor,
    "Parameter": nn.Parameter,
    "Call": Call,
    "Site": Site,
    "View": View,
    "Kept": Kept,
    "GroupAffine": GroupAffine,
    "Record": Record,
    "Region": Region,
    "Exact": Exact,
    "Entry": Entry,
    "LastRestored": LastRestored,
    "Compressed": Compressed,
    "strided": torch.strided,
    "BEFORE": BEFORE,
    "calling": CALL,
    "below_autograd": torch._C._AutoDispatchBelowAutograd,
    "compress": torch.ops.actcore.group_affine_compress.default,
    "decompress": torch.ops.actcore.group_affine_decompress.default,
}
"""What of Python the part in C knows, by the names that it has there."""

bind_replay(BOUND)
