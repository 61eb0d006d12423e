"""Arguments that several commands share, and the types of their values."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.units import GIB, KIB, MIB

THREADS = 2
"""Of torch's operators, where a command does not take as many as torch does by itself: what most figures here have."""


def add_shared(parser: argparse.ArgumentParser, threads: int, place: str = "") -> None:
    """Adds the arguments that most commands have: device, threads, JSON."""
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="default: %(default)s")
    parser.add_argument("--threads", type=positive, default=threads, help="of torch's operators; default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"write all raw values, machine and versions{place}")


def add_deadline(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds the time by which a command ends, of which ``what`` is measured one by one."""
    parser.add_argument(
        "--deadline",
        type=positive,
        metavar="SECONDS",
        help=f"after which it ends: no {what} begins any more, one that runs is ended; default: none",
    )


def add_chart(parser: argparse.ArgumentParser, place: str = "") -> None:
    """Adds the file of the chart; ``place`` says where it goes by default."""
    parser.add_argument(
        "--chart", type=Path, metavar="FILE", help=f"draw a chart, as PNG, SVG or PDF by its name{place}"
    )


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
