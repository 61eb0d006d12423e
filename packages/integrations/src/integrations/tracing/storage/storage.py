"""``Storages``: one stored copy per storage, whatever the number of views and operators that save it."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from actcore import Codec, Kept, Raw
from integrations._utils.storages import StorageMap
from integrations.tracing.storage.records import Record
from integrations.tracing.storage.regions import Exact, LastRestored, Region, Stream, View, find_lazy_changes, is_sign
from integrations.tracing.tensors import Extent

# A part of a storage that is this many times smaller is worth a copy, even if something unknown keeps the storage
# alive.
_SMALL = 8


class StorageEntry:
    """What is known of a storage: whether it was counted, and its living regions, which autograd holds."""

    __slots__ = ("counted", "regions")

    def __init__(self) -> None:
        self.counted = False
        self.regions: list[weakref.ref[Region]] = []

    def alive(self) -> list[Region]:
        return [region for reference in self.regions if (region := reference()) is not None]

    def remember(self, regions: list[Region]) -> None:
        self.regions = [weakref.ref(region) for region in regions]


class Storages:
    """What is stored of each storage.

    Attributes:
        entries: what is known of the storages that were saved.
        last: the region that was restored last.
    """

    def __init__(self) -> None:
        self.entries: StorageMap[StorageEntry] = StorageMap()
        self.last = LastRestored()

    def original_bytes(self, storage: torch.UntypedStorage) -> int:
        """The bytes of a storage for the first call, 0 for later ones."""
        entry = self._of(storage)
        if entry.counted:
            return 0
        entry.counted = True
        return storage.nbytes()

    def count_again(self, storage: torch.UntypedStorage) -> None:
        """Has ``original_bytes`` count a storage once more: what was counted is a copy."""
        self._of(storage).counted = False

    def forget(self, storage: torch.UntypedStorage) -> None:
        """Has what is saved of this storage from now on share nothing that was stored before."""
        self._of(storage).regions.clear()

    def keeps(self, storage: torch.UntypedStorage) -> bool:
        """Whether a storage is kept whole."""
        return any(region.kept is not None for region in self._of(storage).alive())

    def keep(self, tensor: Tensor, extent: Extent, record: Record, overlapping: bool = False) -> View | Exact:
        """Keeps a tensor as it is. Its whole storage stays alive, so whatever else is saved of it is kept, too. But a
        small part of a storage that nothing else keeps is copied."""
        storage = tensor.untyped_storage()
        entry = self._of(storage)
        regions = entry.alive() if entry.regions else []
        counted = any(region.kept is not None for region in regions)
        nbytes = storage.nbytes()
        small = _SMALL * extent.numel * tensor.itemsize <= nbytes
        if small and not counted and not overlapping and not any(find_lazy_changes(tensor)):
            return self.store(tensor, extent, Raw(), record, seed=0, stream=0)
        for region in regions:
            if region.kept is None and region.shares_elements(tensor):
                region.keep(tensor)
        for region in regions:
            if region.kept is not None and region.covers(tensor, extent.layout):
                if not counted:
                    record.stored_bytes = nbytes
                return Exact(Kept.of(tensor), region)
        if not counted:
            record.stored_bytes = nbytes
        region = Region(tensor, extent, self.last)
        region.kept = kept = Kept.of(tensor)
        entry.remember([*regions, region])
        return Exact(kept, region)

    def store(
        self,
        tensor: Tensor,
        extent: Extent,
        codec: Codec,
        record: Record,
        *,
        seed: int,
        stream: Stream,
        whole: Tensor | None = None,
    ) -> View | Exact:
        """Stores a tensor, or finds it stored.

        Args:
            tensor, extent: the tensor, and the part of memory that it covers.
            codec: how it is stored.
            record: its record.
            seed, stream: of its noise.
            whole: a larger tensor to store in its place if nothing of its memory is stored yet. Other parts of it are
                saved later.
        """
        storage = tensor.untyped_storage()
        entry = self._of(storage)
        sign = is_sign(codec)
        if not entry.regions:  # as is true of most
            source, all_of_it = (tensor, extent) if whole is None else (whole, Extent.of(whole))
            region = Region(source, all_of_it, self.last)
            entry.regions.append(weakref.ref(region))
            region.store(source, all_of_it, codec, record, sign, seed, stream)
            return View(region, extent.layout, int(tensor.storage_offset()), sign)
        regions = entry.alive()
        found = next((region for region in regions if region.covers(tensor, extent.layout)), None)
        if found is None:
            region = Region(tensor, extent, self.last)
            if any(other.kept is not None and other.version == region.version for other in regions):
                region.keep(tensor)
            regions.append(region)
            entry.remember(regions)
        else:
            region = found
        region.store(tensor, extent, codec, record, sign, seed, stream)
        if len(regions) > 1 and region.kept is None and sum(other.nbytes for other in regions) > storage.nbytes():
            kept = self.keep(tensor, extent, record, overlapping=True)
            record.why = "its saved views overlap, and would take more bytes than their storage: kept exactly"
            return kept
        return View(region, extent.layout, int(tensor.storage_offset()), sign)

    def _of(self, storage: torch.UntypedStorage) -> StorageEntry:
        entry = self.entries.get(storage)
        if entry is None:
            entry = StorageEntry()
            self.entries.put(storage, entry)
        return entry
