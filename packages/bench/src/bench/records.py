"""JSON files in packages/bench/results: what ``--json`` writes and ``show`` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.benches import kind_of
from bench.errors import BenchError
from bench.gpu.results import StageResults
from bench.json_files import FORMAT, save_as
from bench.kernels.estimate import EstimateResults
from bench.kernels.results import KernelResults
from bench.record import files
from bench.record.record import Record

AnyResults = Record | KernelResults | EstimateResults | StageResults

_KINDS: Mapping[str, Any] = {
    "kernels": KernelResults,
    "kernels-estimate": EstimateResults,
    "gpu": StageResults,
}


def save(results: AnyResults, path: Path) -> None:
    """Writes JSON, as ``save_as`` does.

    Raises:
        BenchError: the file cannot be written.
    """
    if isinstance(results, Record):
        files.save(results, path)
        return
    kind = next(name for name, found in _KINDS.items() if isinstance(results, found))
    save_as(kind, results, path)


def load(path: Path) -> AnyResults:
    """Reads what ``save`` wrote.

    Raises:
        BenchError: the file cannot be read, or holds something else.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        if content.get("format") == files.FORMAT:
            return files.load(path, kind_of)
        if content.pop("format") != FORMAT:
            raise ValueError("another format")
        # Files that say no kind are older than the kinds.
        found: AnyResults = _KINDS[content.pop("kind", "gnn")].of(content)
        return found
    except OSError as error:
        raise BenchError(f"results cannot be read from {path} ({error.strerror})") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BenchError(f"{path} holds no results of `python -m bench ... --json` ({error})") from error
