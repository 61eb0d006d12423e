"""``Storages``: one stored copy per storage, whatever the number of views and operators that save it."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from actcore import Codec, Kept, Raw
from integrations.saved.recipes import Extent
from integrations.saved.records import Record
from integrations.saved.regions import Exact, LastRestored, Region, Stream, View, is_sign, lazy_of

# A part of a storage that is this many times smaller is worth a copy, even if somebody unknown keeps the storage alive.
_SMALL = 8


class _Known:
    """A storage, and its regions that are alive. Autograd holds them; here they are only known."""

    __slots__ = ("counted", "reference", "regions")

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.reference = StorageWeakRef(storage)  # keeps the address from being given to another
        self.counted = False
        self.regions: list[weakref.ref[Region]] = []

    def alive(self) -> list[Region]:
        return [region for reference in self.regions if (region := reference()) is not None]

    def remember(self, regions: list[Region]) -> None:
        self.regions = [weakref.ref(region) for region in regions]


class Storages:
    """What is stored of each storage, by its address."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._room = 1024
        self._last = LastRestored()

    def original_bytes(self, storage: torch.UntypedStorage) -> int:
        """The bytes of a storage when it is first asked about, 0 from then on."""
        known = self._of(storage)
        if known.counted:
            return 0
        known.counted = True
        return storage.nbytes()

    def count_again(self, storage: torch.UntypedStorage) -> None:
        """Lets ``original_bytes`` count a storage once more: what was counted is a copy."""
        self._of(storage).counted = False

    def forget(self, storage: torch.UntypedStorage) -> None:
        """Shares nothing that was stored so far with what is saved of this storage from now on."""
        self._of(storage).regions.clear()

    def keeps(self, storage: torch.UntypedStorage) -> bool:
        """Whether a storage is kept whole, as it is."""
        return any(region.kept is not None for region in self._of(storage).alive())

    def keep(self, tensor: Tensor, extent: Extent, record: Record, overlapping: bool = False) -> View | Exact:
        """Keeps a tensor as it is. Its whole storage stays, so whatever else is saved of it is kept, too; unless it is
        a small part of a storage that nothing else keeps, of which it is worth a copy."""
        storage = tensor.untyped_storage()
        known = self._of(storage)
        regions = known.alive()
        counted = self.keeps(storage)
        small = _SMALL * extent.numel * tensor.itemsize <= storage.nbytes()
        if small and not counted and not overlapping and not any(lazy_of(tensor)):
            return self.store(tensor, extent, Raw(), record, seed=0, stream=0)
        for region in regions:
            if region.kept is None and region.shares_elements(tensor):
                region.keep(tensor)
        if not counted:
            record.stored_bytes = storage.nbytes()
        region = Region(tensor, extent, self._last)
        region.keep(tensor)
        known.remember([*regions, region])
        return Exact(Kept.of(tensor), region)

    def store(
        self, tensor: Tensor, extent: Extent, codec: Codec, record: Record, *, seed: int, stream: Stream
    ) -> View | Exact:
        """Stores a tensor, or finds it stored."""
        storage = tensor.untyped_storage()
        known = self._of(storage)
        regions = known.alive()
        region = next((found for found in regions if found.covers(tensor, extent.layout)), None) if regions else None
        if region is None:
            region = Region(tensor, extent, self._last)
            if regions and any(found.kept is not None and found.version == region.version for found in regions):
                region.keep(tensor)
            regions.append(region)
            known.remember(regions)
        sign = is_sign(codec)
        region.store(tensor, extent, codec, record, sign, seed, stream)
        if len(regions) > 1 and region.kept is None and sum(found.nbytes for found in regions) > storage.nbytes():
            kept = self.keep(tensor, extent, record, overlapping=True)
            record.why = "its views that are saved overlap, and would take more than their storage: kept exactly"
            return kept
        return View(region, extent.layout, int(tensor.storage_offset()), sign)

    def _of(self, storage: torch.UntypedStorage) -> _Known:
        known = self._known.get(storage._cdata)
        if known is None:
            if len(self._known) >= self._room:  # storages that are gone can be forgotten: nobody can ask for them
                alive = {address: old for address, old in self._known.items() if not old.reference.expired()}
                self._known, self._room = alive, max(1024, 2 * len(alive))
            known = self._known[storage._cdata] = _Known(storage)
        return known
