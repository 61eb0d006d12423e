"""``arrays_in``: the arrays of an ``.npz`` from outside, whose sizes are bounded before anything is allocated."""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from os import PathLike
from pathlib import Path
from typing import Any

_KINDS = "biuf"
"""Kinds of NumPy's dtypes that are numbers. Others are pickles, or records, or have elements of no bytes."""

_OF_ARCHIVES = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError, RuntimeError)
"""What ``zipfile`` raises for a damaged archive."""


def arrays_in(path: str | PathLike[str], most: int) -> dict[str, Any]:
    """The arrays of an ``.npz``, by name. Nothing is unpickled.

    ``numpy.load`` allocates what a header says before it looks at the bytes behind it, and unpacks what an archive
    says.

    Args:
        path: of the file.
        most: bytes that the arrays may take together.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no such archive, takes more, or has arrays that are no numbers; the message says why.
    """
    with Path(path).open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                entries = archive.infolist()
                if (total := sum(entry.file_size for entry in entries)) > most:
                    raise ValueError(f"its arrays must take at most {most} bytes, got {total}")
                return {entry.filename.removesuffix(".npy"): _array(_unpacked(archive, entry)) for entry in entries}
        except (*_OF_ARCHIVES, OSError, ValueError) as error:  # OSError: a place that is not in the file
            raise ValueError(f"{path} must be an .npz file of numbers: {error}") from error


def _unpacked(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """An entry's bytes, at most as many as it says, whatever it would unpack to."""
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # the others unpack without a bound
        raise ValueError(f"entries must be stored or deflated, as by NumPy, got compression {entry.compress_type}")
    with archive.open(entry) as file:
        return file.read(entry.file_size)  # without the size it would unpack all, and then cut it


def _array(content: bytes) -> Any:
    """The array of a ``.npy``, whose bytes are as many as its header says."""
    from numpy.lib import format as npy

    file = io.BytesIO(content)
    version = npy.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"an array must be of NumPy's format 1 or 2, got {version}")
    shape, _, dtype = (npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(file)
    if dtype.kind not in _KINDS:
        raise ValueError(f"an array must hold numbers, got dtype {dtype!s:.40}")
    if (needed := math.prod(shape) * dtype.itemsize) != (there := len(content) - file.tell()):
        raise ValueError(f"an array of shape {shape} must have {needed} bytes, got {there}")
    file.seek(0)
    return npy.read_array(file, allow_pickle=False)
