"""The record of a tensor that keeps its elements in other tensors: sparse, nested, a wrapper subclass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from actcore import SavedTensor
from integrations.runtime.specs import Place
from integrations.tracing.storage.records import Record, kept_by
from integrations.tracing.storage.storage import Storages
from integrations.tracing.tensors import find_storages


def record_of_compound(
    tensor: Tensor, place: Place, occurrence: int, holder: Callable[[torch.UntypedStorage], str], storages: Storages
) -> Record:
    """The record of such a tensor, which is kept exactly.

    Args:
        tensor, place, occurrence: the tensor, its place, and how many tensors were saved there before it.
        holder: tells what keeps a storage alive besides autograd, in words; empty for nothing.
        storages: the storages of the forward, of which each counts once.
    """
    saved = _described(tensor, place, occurrence)
    parts = find_storages(tensor)
    holders = [holder(storage) for storage in parts]
    if holders and all(holders):
        return kept_by(holders[0], saved)
    free = [storage for storage, held in zip(parts, holders, strict=True) if not held]
    nbytes = sum(storages.original_bytes(storage) for storage in free)
    why = f"{type(tensor).__name__} of layout {tensor.layout} has no storage of its own: kept exactly"
    return Record(saved, "kept", why, "", nbytes, nbytes)


def _described(tensor: Tensor, place: Place, occurrence: int) -> SavedTensor:
    module, operator, role = place
    if tensor.is_nested and tensor.layout is torch.strided:  # such a tensor has neither shape nor strides to ask for
        shape = torch.Size((tensor.size(0),))
        return SavedTensor(shape, tensor.dtype, (), tensor.device, operator, role, module, occurrence)
    return SavedTensor.of(tensor, operator=operator, role=role, module=module, occurrence=occurrence)
