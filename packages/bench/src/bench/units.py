"""Sizes in words."""

from __future__ import annotations

KIB, MIB, GIB = 2**10, 2**20, 2**30


def size_name(nbytes: int) -> str:
    """``4096`` as ``"4 KiB"``."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:g} {name}"
    return f"{nbytes} bytes"
