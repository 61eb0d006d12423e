"""Step tables as files: FewBit's ``.npz``, which several tables share, and ``.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from integrations._utils.whole_files import write_text, written_whole
from integrations.fewbit.store import END, read_arrays
from integrations.policies.codebooks.steps import StepTable

TYPES = (".npz", ".json")


def save(table: StepTable, name: str, bits: int, path: Path) -> None:
    """Writes a table: an ``.npz`` gets it beside what it holds already, a ``.json`` holds one table.

    An ``.npz`` has borders with the ends of FewBit's domain around them; steps of ``|x|`` it cannot hold. Needs NumPy.

    Raises:
        ImportError: NumPy is not there.
        OSError: the file cannot be read or written.
        ValueError: the name ends in neither, the file that is there is no ``.npz``, or an ``.npz`` is to hold steps of
            ``|x|``.
    """
    require_type(path)
    if path.suffix == ".json":
        content = {
            "name": name,
            "bits": bits,
            "even": table.even,
            "boundaries": table.boundaries,
            "levels": table.levels,
        }
        write_text(path, json.dumps(content, indent=1) + "\n")
        return
    if table.even:
        raise ValueError(
            f'an .npz file holds steps over x, but the steps of {name} are over |x|; fit with parity "none", or write '
            "a .json file"
        )
    try:
        import numpy
    except ImportError as error:
        raise ImportError("an .npz file needs NumPy: pip install numpy") from error
    arrays: dict[str, Any] = {}
    if path.exists():
        try:
            arrays = read_arrays(path)
        except ValueError as error:
            raise ValueError(f"{path} exists and is not an .npz file; choose another name") from error
    inner = table.boundaries
    borders = [min((-END, *inner)), *inner, max((END, *inner))]
    arrays |= {f"{name}{bits:02d}-borders": numpy.array(borders), f"{name}{bits:02d}-levels": numpy.array(table.levels)}
    with written_whole(path) as part:
        numpy.savez(part, **arrays)


def require_type(path: Path) -> None:
    """Raises ``ValueError`` if a file's name ends in none of ``TYPES``."""
    if path.suffix not in TYPES:
        raise ValueError(f"a table's file must end in .npz or .json, got {path}")


def require_folder(path: Path) -> None:
    """Raises ``FileNotFoundError`` if there is no folder to write a file into."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no folder {path.parent}; make it first")
