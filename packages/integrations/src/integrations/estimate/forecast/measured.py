"""For which kinds of devices this project has recorded measurements, and what is said of others."""

from __future__ import annotations

import torch

MEASURED = ("cpu", "cuda")
"""Kinds of devices whose results are recorded in packages/bench/results; a test of bench compares the two."""


def unmeasured(kind: str = "cpu") -> str:
    """A note for a device without recorded measurements; empty if there are any.

    Args:
        kind: the kind of device that a report is for, such as ``"cuda"``; for the CPU, the kind on which this machine
            trains.
    """
    if kind == "cpu":
        kind = _own()
    if kind in MEASURED:
        return ""
    name = f" ({torch.cuda.get_device_name()})" if kind == "cuda" and torch.cuda.is_available() else ""
    return (
        f"device {kind}{name}: this project has no measurements on this kind of device; docs/reference/benchmarks.md "
        "lists the commands that measure it"
    )


def _own() -> str:
    found = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if found is None else found.type
