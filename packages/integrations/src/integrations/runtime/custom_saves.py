"""What this library's own functions announce that they store: a report row for each tensor that torch's function would
keep."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from actcore import Codec, Offload, SavedTensor
from actcore.stored import Absent, Stored
from integrations._utils.storages import StorageSet
from integrations.policies.norms import OfChannels
from integrations.policies.policy import UNKNOWN
from integrations.tracing.storage.records import Record, kept_by
from integrations.tracing.storage.regions import codec_name, inner
from integrations.tracing.tensors import get_storage

if TYPE_CHECKING:
    from integrations.runtime.packing import PackedForward

WHY = "stored by its layer"
"""The reason given in the row of an announced tensor."""


@dataclass(frozen=True)
class PendingSave:
    """A tensor that was announced, and that autograd is about to save.

    Attributes:
        storage: the tensor's own. The weak reference keeps the address from being given to another.
        row: the row that the tensor is a part of; ``None`` for a tensor that is kept as it is and has a row of its own.
        operator, role: the operator and role of that row.
    """

    storage: StorageWeakRef
    row: Record | None
    operator: str
    role: str


def add_record(records: list[Record], record: Record, due: PendingSave | None) -> Record:
    """Adds a tensor's record to the records, or to the row that the tensor is a part of."""
    if due is not None and due.row is not None:
        if due.row.parts is not None and not record.owner:
            due.row.parts.append(record)
        return record
    if due is not None and not record.saved.shape.numel():
        return record  # an empty tensor of a layer: there is nothing to tell
    if due is not None and not record.saved.operator:
        saved = replace(record.saved, operator=due.operator, role=due.role)
        record = replace(record, saved=saved, why=WHY if record.why == UNKNOWN else record.why)
    records.append(record)
    return record


def settle(due: PendingSave | None) -> None:
    """Notes that the part has been stored."""
    if due is not None and due.row is not None:
        due.row.settle()


@dataclass(frozen=True)
class _Row:
    """A row of the last announcement."""

    record: Record
    source: StorageWeakRef | None
    copied: bool


class Announced:
    """The announcements of one session: what ``actcore.stored`` calls a listener. It holds no tensor.

    Autograd packs the parts right after they were announced, so each announcement ends the one before.

    Attributes:
        due_by_address: what was announced and is not packed yet, by the address of its storage.
    """

    def __init__(self, session: PackedForward) -> None:
        self._session: PackedForward = weakref.proxy(session)
        self.due_by_address: dict[int, list[PendingSave]] = {}
        self._rows: list[_Row] = []
        self._held = StorageSet()

    # ---- what the functions tell ----

    def stored(self, announced: Sequence[Stored]) -> None:
        """Notes what a Function stores, if autograd gives the parts to this session's hooks."""
        if self._session.is_innermost():
            session, module = self._session.owner_of_forward()
            session.announced._take(announced, module)

    def placed(self, output: Tensor, into: Tensor) -> None:
        """Moves the rows to the input's memory, where torch's own in-place function has them."""
        if self._session.is_innermost():
            self._session.owner_of_forward()[0].announced._place(output, into)

    def held(self, tensor: Tensor, operator: str, codec: Codec | None, nbytes: int) -> None:
        """Notes what hooks inside of this session's keep."""
        session, module = self._session.owner_of_forward()
        session.announced._hold(tensor, operator, codec, nbytes, module)

    # ---- what the session asks ----

    def due(self, storage: torch.UntypedStorage) -> PendingSave | None:
        """The announcement of a tensor that is packed now. Each is returned once."""
        waiting = self.due_by_address.get(storage._cdata) if self.due_by_address else None
        if waiting is None:
            return None
        found = waiting.pop(0)
        if not waiting:
            del self.due_by_address[storage._cdata]
        return found

    # ----

    def _take(self, announced: Sequence[Stored], module: str) -> None:
        if not announced[0].more:
            self._rows.clear()
            self.due_by_address.clear()
        for stored in announced:
            row: Record | None = None
            kept = len(stored.parts) == 1 and stored.parts[0] is stored.source
            if stored.more and stored.parts and not kept and self._rows:
                row = self._rows[0].record
            elif not kept:
                row, source = self._record(stored, module)
                self._rows.append(_Row(row, source, stored.copied))
                self._session.records.append(row)
            for part in stored.parts:
                storage = get_storage(part)
                if storage is not None:
                    due = PendingSave(StorageWeakRef(storage), row, stored.operator, stored.role)
                    self.due_by_address.setdefault(storage._cdata, []).append(due)

    def _record(self, stored: Stored, module: str) -> tuple[Record, StorageWeakRef | None]:
        """The record of a source, and the source's storage."""
        source, session = stored.source, self._session
        codec = stored.codec if isinstance(stored.codec, str) else _words(stored.codec, source)
        host = isinstance(stored.codec, Offload) and source.device.type != "cpu"
        if isinstance(source, Absent):
            saved = SavedTensor(source.shape, source.dtype, (), source.device, stored.operator, stored.role, module)
            return Record(saved, codec, WHY, "", source.nbytes, 0, host, []), None
        saved = SavedTensor.of(source, operator=stored.operator, role=stored.role, module=module)
        storage = get_storage(source)
        if storage is None:
            return Record(saved, codec, WHY, "", 0, 0, host, []), None
        owner = session.owners.owner(source, storage, session.tracker.foreign, session.tracker.call)
        why = f"{WHY}, and {owner} is alive anyway" if owner else WHY
        nbytes = 0 if owner else session.storages.original_bytes(storage)
        return Record(saved, codec, why, "", nbytes, 0, host, []), StorageWeakRef(storage)

    def _place(self, output: Tensor, into: Tensor) -> None:
        made, memory, session = get_storage(output), get_storage(into), self._session
        rows, self._rows = self._rows, []
        if made is None or memory is None or made._cdata == memory._cdata:
            return
        for row in rows:
            source = None if row.source is None else row.source.cdata
            if source == made._cdata:
                owner = session.owners.owner(into, memory, session.tracker.foreign, None)
                row.record.original_bytes = 0 if owner else session.storages.original_bytes(memory)
            elif row.copied and source == memory._cdata:
                if row.record.original_bytes:
                    session.storages.count_again(memory)
                row.record.original_bytes = into.numel() * into.itemsize

    def _hold(self, tensor: Tensor, operator: str, codec: Codec | None, nbytes: int, module: str) -> None:
        session, storage = self._session, get_storage(tensor)
        call, role = session.tracker.call, "input"
        if not operator:
            operator, role = ("", "") if call is None else (call.operator, call.role(tensor, storage))
        if storage is None:  # a sparse tensor or the like: as the session itself would record it
            session.records.append(session.record_of_compound(tensor, (module, operator, role), 0))
            return
        record, _ = self._record(Stored(tensor, operator, role, codec or "kept"), module)
        owner = session.owners.owner(tensor, storage, session.tracker.foreign, call)
        if codec is not None:
            record.stored_bytes = nbytes
        elif owner:
            record = kept_by(owner, record.saved)
        elif storage not in self._held:
            record.stored_bytes = storage.nbytes()
            self._held.add(storage)
        session.records.append(record)


def _words(codec: Codec, source: Tensor | Absent) -> str:
    """The name of a layer's codec, with the mean width where widths differ from row to row."""
    own = inner(codec)
    words = ", on the host" if own is not codec else ""
    if isinstance(own, OfChannels):
        own, words = own.inner, f", standardised{words}"
    widths, total = getattr(own, "bits", None), getattr(own, "total", None)
    rows = source.shape[0] if source.shape else 1
    if isinstance(widths, tuple):
        rows, total = len(widths), sum(widths)
    if total is None:
        return codec_name(codec)
    mean = total / max(rows, 1)
    return f"GroupAffine(bits={mean:.3g} on average, group_size={getattr(own, 'group_size', 0)}){words}"
