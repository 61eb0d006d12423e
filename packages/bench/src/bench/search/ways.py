"""The ways that are searched: those of ``bench systems`` for any model, and those of ``bench llm`` for decoders."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from bench.llm.ways import CHECKPOINTS, CHUNKED, LEAST, beside
from bench.llm.ways import WAYS as DECODERS
from bench.systems.ways import PLAIN, Way
from bench.systems.ways import WAYS as SYSTEMS

WAYS: Mapping[str, Way] = MappingProxyType({**SYSTEMS, **DECODERS})
"""By name."""

CONTEXT = (PLAIN, CHECKPOINTS, CHUNKED, beside("lean"), beside(LEAST), beside(CHECKPOINTS))
"""Those that a decoder's tokens are searched in by default. A plan that rounds is none of them: its first step takes
what a plain one does."""


def label(way: str) -> str:
    """A way's name in tables, with a star for those of others."""
    return way if WAYS[way].ours or way == PLAIN else f"{way} *"
