"""``fresh_casts``: a block in which autocast casts the weights anew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from integrations._utils.torch_internals import is_any_autocast_enabled


@contextmanager
def fresh_casts() -> Iterator[None]:
    """A block in which autocast's cache starts empty. A forward that finds casts of an earlier one runs other operators
    than one that makes them."""
    kept = is_any_autocast_enabled() and torch.is_autocast_cache_enabled()
    if kept:
        torch.clear_autocast_cache()
    try:
        yield
    finally:
        if kept:
            torch.clear_autocast_cache()
