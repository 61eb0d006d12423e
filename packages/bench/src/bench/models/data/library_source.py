"""The source of Python's standard library as one text, in bytes: every machine has it."""

from __future__ import annotations

import hashlib
import platform
import sysconfig
from pathlib import Path

import torch
from torch import Tensor

from bench.errors import BenchError
from bench.models.data.sentence_stream import Text

_HELD_OUT = 10  # one file in so many
_LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})  # not the same everywhere


def load(most: int, folder: Path | None = None) -> Text:
    """Read the standard library's ``.py`` files without its tests, one behind another.

    Hashes of the files' names say their order, and which are held out. So each part has files of all packages, and the
    same Python gives the same text.

    Args:
        most: bytes for training, at most. A tenth as many are held out.
        folder: of the library; default: the running Python's.

    Raises:
        BenchError: one of the two parts has no files.
    """
    folder = folder or Path(sysconfig.get_path("stdlib"))
    files = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*.py")}
    names = {_number(name): name for name in files if _LEFT_OUT.isdisjoint(name.split("/"))}
    parts: tuple[list[Path], list[Path]] = [], []
    for number in sorted(names):
        parts[number % _HELD_OUT == 0].append(files[names[number]])
    if not all(parts):
        raise BenchError(f"{folder} has too few .py files to train on, {len(names)}; use a Python with its library")
    what = f"Python {platform.python_version()}'s standard library"
    train, held_out = (_bytes(some, size) for some, size in zip(parts, (most, most // _HELD_OUT), strict=True))
    return Text(what, 256, train, held_out, unit="bytes")


def _number(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def _bytes(files: list[Path], most: int) -> Tensor:
    found = bytearray()
    for file in files:
        if len(found) >= most:
            break
        found += file.read_bytes()
    return torch.frombuffer(found[:most], dtype=torch.uint8).long()
