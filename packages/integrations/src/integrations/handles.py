"""The handles that are alive, by key: what compiled code can hold of a handle is a constant."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from integrations.compression import Compression

_keys = itertools.count()
_handles: WeakValueDictionary[str, Compression] = WeakValueDictionary()


def key_for(handle: Compression) -> str:
    """A new key, by which the handle is found from now on."""
    key = str(next(_keys))
    _handles[key] = handle
    return key


def handle_of(key: str) -> Compression | None:
    """The handle with that key, if it is alive."""
    return _handles.get(key)
