"""Where and with what results were made: machine, versions, commit, command."""

from __future__ import annotations

import importlib
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

PACKAGES = ("torch", "actcore", "actcore-integrations")
"""Whose versions all records say."""
_MODULES = {"actcore": "actcore", "actcore-integrations": "integrations"}
COMMIT = "ACTCORE_COMMIT"
"""The environment variable that says the commit where git does not: in a copy of the files alone. A plus behind it says
that files differed from it."""


@dataclass(frozen=True)
class Machine:
    """What a reader of results needs to repeat them.

    Attributes:
        processor: name of the CPU, or of the GPU trained on.
        threads: of torch's operators.
        system: operating system and Python.
        versions: of the packages that matter and are there.
        commit: of this repository; empty when installed without it and ``COMMIT`` does not say it.
        dirty: whether files differed from the commit.
        command: as typed, the interpreter's path left out.
        date: UTC, to the minute.
        earlier: commands that wrote to the file before, each once, but for this one.
    """

    processor: str
    threads: int
    system: str
    versions: dict[str, str]
    commit: str
    dirty: bool
    command: str
    date: str
    earlier: list[str] = field(default_factory=list)

    @property
    def commands(self) -> list[str]:
        """All that wrote to the results, this one the last."""
        return [*self.earlier, self.command]

    @classmethod
    def here(cls, device: torch.device, threads: int, packages: Sequence[str] = PACKAGES) -> Machine:
        """This machine, now, with the versions of ``packages``."""
        commit, dirty = _commit()
        return cls(
            processor=torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name(),
            threads=threads,
            system=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
            versions={package: found for package in packages if (found := version_of(package))},
            commit=commit,
            dirty=dirty,
            command=shlex.join(["python", "-m", "bench", *sys.argv[1:]]),
            date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        )

    def __str__(self) -> str:
        versions = ", ".join(f"{package} {number}" for package, number in self.versions.items())
        commit = f"commit {self.commit[:10]}{' with changes' if self.dirty else ''}" if self.commit else "no commit"
        return f"{self.processor}, {self.threads} threads, {self.system}; {versions}; {commit}; {self.date}"


def version_of(package: str) -> str:
    """The version of a distribution; of this project's own also where they are on Python's path without having been
    installed. Empty where it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        if package not in _MODULES:
            return ""
    try:
        return str(importlib.import_module(_MODULES[package]).__version__)
    except Exception:  # in whatever way it cannot be loaded here: all else that is found out is to be kept
        return ""


def _cpu_name() -> str:
    cores = os.cpu_count()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name} ({cores} cores)"


def _commit() -> tuple[str, bool]:
    """The commit that this file belongs to, and whether the repository differs from it."""
    try:
        commit = _git("rev-parse", "HEAD")
        return commit, bool(_git("status", "--porcelain"))
    except (OSError, subprocess.CalledProcessError):
        said = os.environ.get(COMMIT, "")
        return said.removesuffix("+"), said.endswith("+")


def _git(*arguments: str) -> str:
    folder = Path(__file__).parent
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()
