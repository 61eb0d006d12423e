"""``Contents``: tells which storages were written by something other than an operator."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch
from torch import Tensor

from integrations._utils.torch_internals import FakeTensor, OpOverload, unset_fake_temporarily
from integrations.capture.dispatch.memory import get_key, is_plain

# These leave in a storage what was there before, which may be exactly what a kernel will write.
_UNINITIALISED = frozenset(
    {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::empty_permuted", "aten::new_empty"}
    | {"aten::new_empty_strided"}
)
_FILLER = 0x5A
_PART = 1 << 20  # words; products of a larger part would take memory of their own


class Contents:
    """Checksums of storages, which reveal writes that torch did not dispatch.

    Kernels that are handed addresses, such as those of Triton and of numpy, write so. Fake tensors have no addresses
    and are skipped, as is everything that is not plain. The storages themselves are not held.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, weakref.ref[torch.UntypedStorage]]] = {}

    def fill(self, function: OpOverload, made: Iterable[Tensor]) -> None:
        """Writes something into tensors that an operator has left uninitialised."""
        if function._schema.name in _UNINITIALISED:
            for storage in _find_storages(made, but=torch.bool):  # bytes of a bool are 0 or 1
                with unset_fake_temporarily():
                    _count_bytes(storage, torch.uint8).fill_(_FILLER)

    def note(self, tensors: Iterable[Tensor]) -> None:
        """Notes what tensors hold now."""
        for storage in _find_storages(tensors):
            self._known[storage._cdata] = _number(storage), weakref.ref(storage)

    def changed(self, tensors: Iterable[Tensor]) -> list[int]:
        """The storages of tensors whose content has changed since it was noted. Storages that were not noted yet are
        noted."""
        found = []
        for storage in _find_storages(tensors):
            key, number = storage._cdata, _number(storage)
            known = self._known.get(key)
            if known is not None and known[1]() is not None and number != known[0]:
                found.append(key)
            self._known[key] = number, weakref.ref(storage)
        return found

    def changed_since(self) -> list[int]:
        """The changed ones among all storages that are alive."""
        alive = [(key, number, reference()) for key, (number, reference) in self._known.items()]
        return [key for key, number, storage in alive if storage is not None and _number(storage) != number]


def _find_storages(tensors: Iterable[Tensor], but: torch.dtype | None = None) -> Iterable[torch.UntypedStorage]:
    """The storages that have elements, each once."""
    there = [tensor for tensor in tensors if tensor.dtype != but and _is_there(tensor)]
    return {get_key(tensor): tensor.untyped_storage() for tensor in there}.values()


def _is_there(tensor: Tensor) -> bool:
    """Whether a tensor is plain and has elements to look at. Zeros that torch does not write out have none.

    Raises:
        RuntimeError: it should have some, and has no memory. An operator would read at address 0.
    """
    if not is_plain(tensor) or isinstance(tensor, FakeTensor) or tensor.is_meta or tensor._is_zerotensor():
        return False
    if tensor.numel() and not tensor.data_ptr():
        raise RuntimeError(f"a tensor {list(tensor.shape)} has no memory: DLPack makes such tensors from fake tensors")
    return True


def _number(storage: torch.UntypedStorage) -> int:
    """A checksum that other contents, or the same ones in another order, are unlikely to have."""
    with unset_fake_temporarily():
        words = _count_bytes(storage, torch.int64)
        places = torch.arange(1, min(words.numel(), _PART) + 1, device=words.device)
        parts = [int((part * places[: part.numel()]).sum()) for part in words.split(_PART)]
        rest = _count_bytes(storage, torch.uint8)[words.numel() * 8 :]
        return hash((*parts, int(rest.sum())))


def _count_bytes(storage: torch.UntypedStorage, dtype: torch.dtype) -> Tensor:
    """A storage as whole words or bytes."""
    words = torch.empty(0, dtype=dtype, device=storage.device)
    words.set_(storage, 0, (storage.nbytes() // dtype.itemsize,), (1,))
    return words
