"""The handles that are alive, by key: what compiled code can hold of a handle is a constant."""

from __future__ import annotations

import itertools
from weakref import WeakValueDictionary

from integrations.handle.handle_state import HandleState

_keys = itertools.count()
_handles: WeakValueDictionary[str, HandleState] = WeakValueDictionary()


def key_for(handle: HandleState) -> str:
    """A new key, by which the handle is found from now on."""
    key = str(next(_keys))
    _handles[key] = handle
    return key


def handle_of(key: str) -> HandleState | None:
    """The handle with that key, if it is alive."""
    return _handles.get(key)
