"""``python -m bench.gpu.facts``: what the machine has, as JSON; what cannot be asked is said to be missing."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sysconfig
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

_PACKAGES = (
    *("triton", "numpy", "rich", "matplotlib", "scipy", "scikit-learn", "timm", "torchvision", "transformers"),
    *("torch-geometric", "pytest", "hypothesis", "pybind11", "scikit-build-core", "cmake", "ninja"),
)
_CUDA = "/usr/local/cuda/bin"
_GPU = "name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit,ecc.mode.current"


def facts() -> dict[str, str]:
    """By name."""
    found = {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}, Python {platform.python_version()}",
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda or 'none'}, cuDNN {torch.backends.cudnn.version()}",
        "GPU": _gpu(),
        "nvidia-smi": _said("nvidia-smi", f"--query-gpu={_GPU}", "--format=csv,noheader"),
        "nvcc": _said("nvcc", "--version"),
        "compiler": _said("c++", "--version", line=0),
        "compute-sanitizer": _said("compute-sanitizer", "--version"),
        "Python.h": _header(),
    }
    versions = {package: _version(package) for package in _PACKAGES}
    found["packages"] = ", ".join(f"{package} {number}" for package, number in versions.items() if number)
    found["missing"] = ", ".join(package for package, number in versions.items() if not number) or "nothing"
    return found


def _gpu() -> str:
    if not torch.cuda.is_available():
        return "torch finds no usable GPU"
    gpu = torch.cuda.get_device_properties(0)
    return (
        f"{gpu.name}, compute capability {gpu.major}.{gpu.minor}, {gpu.total_memory / 2**30:.1f} GiB, "
        f"{gpu.multi_processor_count} multiprocessors"
    )


def tool_at(program: str) -> str | None:
    """Where a program lies: on PATH, or with CUDA."""
    return shutil.which(program) or shutil.which(program, path=_CUDA)


def _header() -> str:
    """Of Python, without which nothing is compiled for it."""
    folder = Path(sysconfig.get_path("include"))
    return f"in {folder}" if (folder / "Python.h").is_file() else f"not in {folder}"


def _said(program: str, *arguments: str, line: int = -1) -> str:
    """A line of what a program prints."""
    found = tool_at(program)
    if found is None:
        return f"{program} is not there"
    try:
        printed = subprocess.run([found, *arguments], capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program} does not answer ({error})"
    return (printed.strip().splitlines() or ["it prints nothing"])[line]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


if __name__ == "__main__":
    print(json.dumps(facts()))
