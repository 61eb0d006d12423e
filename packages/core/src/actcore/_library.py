"""Loads the native operator libraries, once, when ``actcore`` is imported."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

_HERE = Path(__file__).parent
_CPU = _HERE / "_ops.so"
_CUDA = _HERE / "_ops_cuda.so"


def _load() -> str:
    """Registers ``torch.ops.actcore`` and returns why the CUDA operators are absent, or an empty string."""
    torch.ops.load_library(_CPU)
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is a CPU build"
    if not _CUDA.exists():
        return "actcore was built without nvcc, or for a CPU build of torch"
    import actcore._native as _native

    built, found = _native.cuda_version.split(".")[0], torch.version.cuda.split(".")[0]
    if built != found:
        reason = f"actcore's CUDA operators were built with CUDA {_native.cuda_version}, torch has {torch.version.cuda}"
        warnings.warn(f"{reason}; install an actcore built for CUDA {found}. CPU tensors work.", stacklevel=3)
        return reason
    try:
        torch.ops.load_library(_CUDA)
    except OSError as error:  # a library or a symbol that it needs is missing, or the file is damaged
        reason = f"actcore's CUDA operators cannot be loaded: {error}"
        warnings.warn(f"{reason}; install an actcore built for this torch. CPU tensors work.", stacklevel=3)
        return reason
    return ""


cuda_missing: str = _load()


def missing_on(device: torch.device) -> str:
    """Why there are no operators for tensors on a device; empty where there are."""
    if device.type in ("cpu", "meta"):
        return ""
    return cuda_missing if device.type == "cuda" else f"actcore has no operators for {device.type}"
