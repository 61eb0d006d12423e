"""On which kinds of devices this project has measured anything, and what is said on another."""

from __future__ import annotations

import torch

MEASURED = ("cpu",)
"""Kinds of devices of which results are recorded in packages/bench/results; a test of bench compares them."""


def unmeasured() -> str:
    """What is to be said of the device that this machine trains on; empty where figures of its kind are recorded."""
    device = _device()
    if device.type in MEASURED:
        return ""
    name = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
    return (
        f"device {device.type}{name}: no figure of this project has been measured on this kind of device; "
        "docs/benchmarks/gpu.md says what would be"
    )


def _device() -> torch.device:
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
