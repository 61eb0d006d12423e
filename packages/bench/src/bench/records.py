"""JSON files in packages/bench/results: what ``--json`` writes and ``show`` reads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.errors import BenchError
from bench.kernels.results import KernelResults
from bench.results import Results

_FORMAT = 1
_GNN, _KERNELS = "gnn", "kernels"


def save(results: Results | KernelResults, path: Path) -> None:
    """Writes JSON, each list of numbers on one line.

    Raises:
        BenchError: the file cannot be written.
    """
    kind = _KERNELS if isinstance(results, KernelResults) else _GNN
    text = json.dumps({"format": _FORMAT, "kind": kind, **asdict(results)}, indent=1)
    text = re.sub(r"\[[-+.\deE,\s]+\]", lambda numbers: f"[{' '.join(numbers.group()[1:-1].split())}]", text)
    try:
        path.write_text(text + "\n")
    except OSError as error:
        raise BenchError(f"results cannot be written to {path} ({error.strerror}); name another file") from error


def load(path: Path) -> Results | KernelResults:
    """Reads what ``save`` wrote.

    Raises:
        BenchError: the file cannot be read, or holds something else.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        if content.pop("format") != _FORMAT:
            raise ValueError("another format")
        # Files that say no kind are older than the kinds.
        readers: Mapping[str, type[Results] | type[KernelResults]] = {_GNN: Results, _KERNELS: KernelResults}
        return readers[content.pop("kind", _GNN)].of(content)
    except OSError as error:
        raise BenchError(f"results cannot be read from {path} ({error.strerror})") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BenchError(f"{path} holds no results of `python -m bench ... --json` ({error})") from error
