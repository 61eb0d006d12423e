"""``python -m bench.gpu.building``: actcore into a folder, with what is installed and without a network.

CMake is called as scikit-build-core would call it, so that an old one is no hindrance. Where CMake cannot be asked, as
where it is on no PATH, pip builds actcore. What does not compile is not compiled a second time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from bench.gpu.place import ROOT, SCRATCH, SITE

_CORE = ROOT / "packages" / "core"
_LEAST = (1, 1)  # of scikit-build-core, in packages/core/pyproject.toml


def build(site: Path, architectures: str, way: str = "") -> str:
    """Builds actcore into a folder that can be on Python's path. What is compiled already is not compiled again.

    Args:
        site: the folder.
        architectures: of CUDA, as CMake calls them; empty: without the CUDA operators.
        way: ``"pip"`` or ``"cmake"``; empty: CMake, or pip where there is no CMake that can be asked.

    Returns:
        In which way.

    Raises:
        OSError, subprocess.CalledProcessError: it cannot be built.
    """
    options = {"ACTCORE_WITH_CUDA": "ON" if architectures else "OFF"}
    if architectures:
        options["CMAKE_CUDA_ARCHITECTURES"] = architectures
    if way != "pip":
        try:
            folder = _configured(options)
        except (OSError, subprocess.CalledProcessError):
            if way or not builds_with_pip():
                raise
        else:
            _with_cmake(site, folder)
            return "CMake"
    _with_pip(site, options)
    return "pip"


def builds_with_pip() -> bool:
    """Whether scikit-build-core is there, and new enough."""
    try:
        parts = version("scikit-build-core").split(".")
    except PackageNotFoundError:
        return False
    return tuple(int(part) for part in parts[:2] if part.isdecimal()) >= _LEAST


def architecture() -> str:
    """The GPU's own, as machine code alone."""
    major, minor = torch.cuda.get_device_capability()
    return f"{major}{minor}-real"


def _with_pip(site: Path, options: dict[str, str]) -> None:
    settings = {
        "build-dir": str(SCRATCH / "pip"),
        **{f"cmake.define.{name}": what for name, what in options.items()},
    }
    shutil.rmtree(site, ignore_errors=True)  # pip replaces nothing in a folder of --target
    _run(
        *(sys.executable, "-m", "pip", "install", "--no-index", "--no-build-isolation", "--no-deps", "--verbose"),
        *("--target", site),
        *(f"--config-settings={name}={what}" for name, what in settings.items()),
        _CORE,
    )


def _configured(options: dict[str, str]) -> Path:
    """The folder that CMake has prepared."""
    folder = SCRATCH / "cmake"
    pybind11 = subprocess.run(
        [sys.executable, "-m", "pybind11", "--cmakedir"], check=True, capture_output=True, text=True
    ).stdout.strip()
    found = {"CMAKE_BUILD_TYPE": "Release", "Python_EXECUTABLE": sys.executable, "pybind11_DIR": pybind11, **options}
    _run("cmake", "-S", _CORE, "-B", folder, "-G", "Ninja", *(f"-D{name}={what}" for name, what in found.items()))
    return folder


def _with_cmake(site: Path, folder: Path) -> None:
    _run("cmake", "--build", folder)
    shutil.rmtree(site, ignore_errors=True)
    _run("cmake", "--install", folder, "--prefix", site)
    shutil.copytree(_CORE / "src" / "actcore", site / "actcore", dirs_exist_ok=True)


def _run(*command: str | Path) -> None:
    print("+", *command, flush=True)
    subprocess.run(list(map(str, command)), check=True, stdin=subprocess.DEVNULL)


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.building")
    parser.add_argument("--site", type=Path, default=SITE)
    parser.add_argument("--architectures", help="such as 90-real; default: the GPU's own")
    parser.add_argument("--without-cuda", action="store_true")
    parser.add_argument("--way", choices=("pip", "cmake"), default="")
    options = parser.parse_args()
    architectures = "" if options.without_cuda else options.architectures or architecture()
    # CMake and ninja of the environment that this Python is of, which may be on no PATH, come before the system's.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    begin = time.perf_counter()
    way = build(options.site.resolve(), architectures, options.way)
    seconds = round(time.perf_counter() - begin, 1)
    print(json.dumps({"way": way, "architectures": architectures or "none", "seconds": seconds}))


if __name__ == "__main__":
    _main()
