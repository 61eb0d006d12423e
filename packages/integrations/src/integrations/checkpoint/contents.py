"""``Contents``: which storages were written without an operator that says so."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch._ops import OpOverload

from integrations.checkpoint.memory import key_of

# They leave in a storage what somebody else left there before, which may be the very thing that a kernel will write.
_UNINITIALISED = frozenset(
    {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::empty_permuted", "aten::new_empty"}
    | {"aten::new_empty_strided"}
)
_FILLER = 0x5A


class Contents:
    """What storages hold, as numbers, by which a write is told that torch did not dispatch.

    A kernel that is handed addresses, such as those of Triton and of numpy, writes so. The storages themselves are not
    held.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[tuple[int, int], weakref.ref[torch.UntypedStorage]]] = {}

    def fill(self, function: OpOverload, made: Iterable[Tensor]) -> None:
        """Writes something into plain tensors that an operator has left as they were."""
        if function._schema.name in _UNINITIALISED:
            for tensor in made:
                if tensor.dtype is not torch.bool:  # of which a byte is 0 or 1
                    _bytes_of(tensor.untyped_storage(), torch.uint8).fill_(_FILLER)

    def note(self, tensors: Iterable[Tensor]) -> None:
        """Plain tensors hold what they are to hold."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._known[storage._cdata] = _number(storage), weakref.ref(storage)

    def changed(self, tensors: Iterable[Tensor]) -> list[int]:
        """The storages of plain tensors that hold something else than when they were noted; others are noted."""
        found = []
        for tensor in {key_of(tensor): tensor for tensor in tensors}.values():
            known = self._known.get(key_of(tensor))
            self.note([tensor])
            if known is not None and known[1]() is not None and self._known[key_of(tensor)][0] != known[0]:
                found.append(key_of(tensor))
        return found

    def changed_since(self) -> Iterator[int]:
        """Those of all that are alive."""
        for key, (number, reference) in self._known.items():
            storage = reference()
            if storage is not None and _number(storage) != number:
                yield key


def _number(storage: torch.UntypedStorage) -> tuple[int, int]:
    """A number that another content, or the same in another order, hardly has."""
    words = _bytes_of(storage, torch.int64)
    places = torch.arange(1, words.numel() + 1, device=words.device)
    rest = _bytes_of(storage, torch.uint8)[words.numel() * 8 :]
    return int((words * places).sum()), int(rest.sum())


def _bytes_of(storage: torch.UntypedStorage, dtype: torch.dtype) -> Tensor:
    """A storage as whole words or bytes."""
    words = torch.empty(0, dtype=dtype, device=storage.device)
    words.set_(storage, 0, (storage.nbytes() // dtype.itemsize,), (1,))
    return words
