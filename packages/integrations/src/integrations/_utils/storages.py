"""``StorageMap`` and ``StorageSet``: storages by identity, for which an address alone is not enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NoReturn, TypeVar

import torch

from integrations._utils.torch_internals import storage_expired, storage_free_weak_ref

Value = TypeVar("Value")


class StorageMap(Generic[Value]):
    """Values by the identity of a storage. A weak reference to each keeps its address from being given to another.

    Attributes:
        by_address: the values by the storages' addresses, for code that looks up many.
    """

    __slots__ = ("_room", "by_address")

    def __init__(self) -> None:
        self.by_address: dict[int, Value] = {}
        self._room = 1024

    def get(self, storage: torch.UntypedStorage) -> Value | None:
        """The value of a storage; ``None`` where it has none."""
        return self.by_address.get(storage._cdata)

    def put(self, storage: torch.UntypedStorage, value: Value) -> None:
        """Gives a storage a value, in the place of the one that it had."""
        address = storage._cdata
        if address not in self.by_address:
            if len(self.by_address) >= self._room:  # forgets storages that are gone: nothing can ask for them
                self._forget([key for key in self.by_address if storage_expired(key)])
                self._room = max(1024, 2 * len(self.by_address))
            storage._weak_ref()  # this returns the address, and counts a weak reference
        self.by_address[address] = value

    def clear(self) -> None:
        """Forget all storages."""
        self._forget(list(self.by_address))

    def _forget(self, addresses: list[int], free: Callable[[int], None] = storage_free_weak_ref) -> None:
        for address in addresses:
            del self.by_address[address]
            free(address)

    def __contains__(self, storage: torch.UntypedStorage) -> bool:
        return storage._cdata in self.by_address

    def __len__(self) -> int:
        return len(self.by_address)

    def __del__(self) -> None:
        self.clear()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a map of storages cannot be copied: its weak references are counted once")


class StorageSet(StorageMap[bool]):
    """Storages by identity."""

    __slots__ = ()

    def add(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata not in self.by_address:
            self.put(storage, True)
