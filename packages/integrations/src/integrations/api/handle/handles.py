"""The living handles, by key. Compiled code cannot hold a handle, but can hold a key as a constant."""

from __future__ import annotations

import itertools
from weakref import WeakValueDictionary

from integrations.api.handle.handle_state import HandleState

_keys = itertools.count()
_handles: WeakValueDictionary[str, HandleState] = WeakValueDictionary()


def key_for(handle: HandleState) -> str:
    """A new key for a handle."""
    key = str(next(_keys))
    _handles[key] = handle
    return key


def find_handle(key: str) -> HandleState | None:
    """The handle with that key, if it is alive."""
    return _handles.get(key)
