"""On which kinds of devices this project has measured anything, and what is said of another."""

from __future__ import annotations

import torch

MEASURED = ("cpu",)
"""Kinds of devices of which results are recorded in packages/bench/results; a test of bench compares them."""


def unmeasured(kind: str = "cpu") -> str:
    """What is to be said of a device; empty where figures of its kind are recorded.

    Args:
        kind: that a report is of, such as ``"cuda"``; of the CPU: the kind that this machine trains on.
    """
    if kind == "cpu":
        kind = _own()
    if kind in MEASURED:
        return ""
    name = f" ({torch.cuda.get_device_name()})" if kind == "cuda" and torch.cuda.is_available() else ""
    return (
        f"device {kind}{name}: no figure of this project has been measured on this kind of device; "
        "docs/benchmarks/gpu.md says what would be"
    )


def _own() -> str:
    found = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if found is None else found.type
