"""What a run of a compiled region tells the session around it: a row of the report for each tensor, and its owner."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from actcore import Layout
from integrations._utils.torch_internals import DisableTorchFunction
from integrations.runtime.compiled.regions import RegionEntry
from integrations.tracing.storage.records import Record
from integrations.tracing.tensors import Extent

if TYPE_CHECKING:
    from integrations.runtime.packing import PackedForward


def record_in_region(session: PackedForward, entry: RegionEntry, like: Tensor) -> int:
    """Records a tensor that a compiled region saves now, and with a region's first tensor also the silent ones. Returns
    the stream for the tensor's noise; it is asked for in every run, so that each forward has noise of its own."""
    with DisableTorchFunction():
        session, root = session.owner_of_forward()
        for other in entry.silent:
            _record(session, other, root, other.saved.shape, other.saved.strides, other.storage_bytes)
        storage = like.untyped_storage()
        if entry.outside:
            nbytes = session.storages.original_bytes(storage)
        else:  # its memory may have belonged to another tensor before
            nbytes = storage.nbytes() if entry.storage_bytes else 0
        record = _record(session, entry, root, like.shape, tuple(like.stride()), nbytes)
        if entry.given:
            owner = session.owners.holder(storage, session.tracker.foreign)
            if owner:
                record.owner, record.why = owner, f"{owner}: alive anyway"
                record.original_bytes = record.stored_bytes = 0
            else:
                session.storages.keep(like, Extent.of(like), record, overlapping=True)
        saved = record.saved
        identity = f"{saved.module}\0{saved.operator}\0{saved.role}\0{saved.occurrence}"
        return session.stream(identity, saved)


def _record(
    session: PackedForward, entry: RegionEntry, root: str, shape: torch.Size, strides: tuple[int, ...], nbytes: int
) -> Record:
    template = entry.saved
    module = ".".join(part for part in (root, template.module) if part)
    occurrence = session.occurrence((module, template.operator, template.role))
    saved = replace(template, shape=shape, strides=strides, module=module, occurrence=occurrence)
    numel = Layout(tuple(shape), strides).stored_numel
    stored = nbytes if entry.form.exact else entry.form.nbytes(numel, saved.dtype)
    record = Record(saved, entry.form.name, entry.form.why, "", nbytes, stored)
    session.records.append(record)
    return record
