"""How a summary tells of modules that were exchanged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


def exchanged_lines(converted: Mapping[str, tuple[str, str]], kept: Mapping[str, str]) -> list[str]:
    """A line for each pair of classes, with how often, and one for each module that stayed.

    Args:
        converted: path -> class before and after.
        kept: path -> reason.
    """
    pairs = Counter(f"{before} -> {after}" for before, after in converted.values())
    lines = [f"  {count:4} x {pair}" for pair, count in pairs.items()]
    return lines + [f"  {path or '(root)'}: {reason}" for path, reason in kept.items()]
