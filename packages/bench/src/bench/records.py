"""JSON files in packages/bench/results: what ``--json`` writes and ``show`` reads."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.activations.results import ActivationResults
from bench.checkpoint.results import CheckpointResults
from bench.errors import BenchError
from bench.fewbit.results import FewBitResults
from bench.gnn.results import Results
from bench.kernels.estimate import EstimateResults
from bench.kernels.results import KernelResults
from bench.search.results import SearchResults
from bench.sensitivity.results import SensitivityResults
from bench.sweep.results import SweepResults
from bench.systems.results import SystemResults
from bench.text.results import TextResults
from bench.vision.results import VisionResults

AnyResults = (
    Results
    | KernelResults
    | EstimateResults
    | SensitivityResults
    | ActivationResults
    | VisionResults
    | FewBitResults
    | CheckpointResults
    | SystemResults
    | SweepResults
    | SearchResults
    | TextResults
)

_FORMAT = 1
_KINDS: Mapping[str, type[AnyResults]] = {
    "gnn": Results,
    "kernels": KernelResults,
    "kernels-estimate": EstimateResults,
    "sensitivity": SensitivityResults,
    "activations": ActivationResults,
    "vision": VisionResults,
    "fewbit": FewBitResults,
    "checkpoint": CheckpointResults,
    "systems": SystemResults,
    "sweep": SweepResults,
    "search": SearchResults,
    "text": TextResults,
}


def save(results: AnyResults, path: Path) -> None:
    """Writes JSON, each list of numbers on one line. The file is there at once: what ends the process in the middle
    costs nothing of what was there before.

    Raises:
        BenchError: the file cannot be written.
    """
    kind = next(name for name, found in _KINDS.items() if isinstance(results, found))
    text = json.dumps({"format": _FORMAT, "kind": kind, **asdict(results)}, indent=1)
    text = re.sub(r"\[[-+.\deE,\s]+\]", lambda numbers: f"[{' '.join(numbers.group()[1:-1].split())}]", text)
    try:
        _write(text + "\n", path)
    except OSError as error:
        raise BenchError(f"results cannot be written to {path} ({error.strerror}); name another file") from error


def _write(text: str, path: Path) -> None:
    if path.exists() and not path.is_file():  # such as /dev/stdout, which nothing shall take the place of
        path.write_text(text)
        return
    whole = path.resolve()  # a link stays one
    part = whole.with_name(f"{whole.name}.{os.getpid()}.part")
    try:
        part.write_text(text)
        part.replace(whole)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def load(path: Path) -> AnyResults:
    """Reads what ``save`` wrote.

    Raises:
        BenchError: the file cannot be read, or holds something else.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        if content.pop("format") != _FORMAT:
            raise ValueError("another format")
        # Files that say no kind are older than the kinds.
        return _KINDS[content.pop("kind", "gnn")].of(content)
    except OSError as error:
        raise BenchError(f"results cannot be read from {path} ({error.strerror})") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BenchError(f"{path} holds no results of `python -m bench ... --json` ({error})") from error
