"""The types of options' values."""

from __future__ import annotations

import argparse

from bench.units import GIB, KIB, MIB


def positive(text: str, least: int = 1) -> int:
    """A whole number."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < least:
        raise argparse.ArgumentTypeError(f"must be a whole number from {least}, got {text!r}")
    return value


def two(text: str) -> int:
    """How often something is measured whose variance is asked for."""
    return positive(text, least=2)


def size(text: str) -> int:
    """Bytes of a tensor. A multiple of 4096 has whole groups in every dtype."""
    for unit, name in ((KIB, "KiB"), (MIB, "MiB"), (GIB, "GiB")):
        number = text.removesuffix(name)
        if number != text and number.isdecimal() and int(number) * unit > 0 and int(number) * unit % (4 * KIB) == 0:
            return int(number) * unit
    raise argparse.ArgumentTypeError(
        f"must be a multiple of 4KiB with a unit, such as 4KiB, 16MiB or 1GiB, got {text!r}"
    )
