"""Loads the native operator libraries, once, when ``actcore`` is imported."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

_HERE = Path(__file__).parent
CPU_LIBRARY = _HERE / "_ops.so"
_CUDA = _HERE / "_ops_cuda.so"
_NUMBERS = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.bool: 11,
    torch.bfloat16: 15,
}
"""Of dtypes, in torch's interface for C."""


def _load() -> str:
    """Registers ``torch.ops.actcore`` and returns why the CUDA operators are absent, or an empty string."""
    torch.ops.load_library(CPU_LIBRARY)
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


def cpu_kernels() -> dict[str, Callable[..., Any]]:
    """Operators by name, as functions that pass torch's dispatcher by: for torch's own tensors on the CPU, while nobody
    looks on. None before torch 2.14, which has no way to take its objects apart."""
    import actcore._native as _native

    return dict(_native.kernels(str(CPU_LIBRARY), _NUMBERS))


def missing_on(device: torch.device) -> str:
    """Return why there are no operators for tensors on a device; an empty string if there are."""
    if device.type in ("cpu", "meta"):
        return ""
    if device.type != "cuda":
        return f"actcore has no operators for {device.type}"
    if cuda_missing or not torch.cuda.is_initialized():  # nobody has a tensor there yet
        return cuda_missing
    return _missing_on_gpu(device)


@cache
def _missing_on_gpu(device: torch.device) -> str:
    """Why the CUDA operators that are loaded do not run on a GPU; empty where they do."""
    import actcore._native as _native

    architectures, capability = _native.cuda_architectures.split(), torch.cuda.get_device_capability(device)
    if _runs_on(capability, architectures):
        return ""
    name = "{}{}".format(*capability)
    return (
        f"{torch.cuda.get_device_name(device)} is of architecture {name}, and actcore's CUDA operators were built for "
        f"{', '.join(architectures)}; build actcore with CMAKE_ARGS=-DCMAKE_CUDA_ARCHITECTURES={name}"
    )


def _runs_on(capability: tuple[int, int], architectures: list[str]) -> bool:
    """Whether a GPU runs what was compiled for these architectures, in CMake's words."""
    for architecture in architectures:
        number, _, kind = architecture.partition("-")
        if not number.isdecimal():  # "native", or features of one GPU: whoever asks for these knows the GPU
            return True
        major, minor = divmod(int(number), 10)
        # Machine code runs on later GPUs of its major version, PTX on all later ones.
        if capability >= (major, minor) and (kind != "real" or capability[0] == major):
            return True
    return False
