"""How results are written: JSON with a kind, each list of numbers on one line, whole or not at all."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.errors import BenchError

FORMAT = 1


def save_as(kind: str, results: Any, path: Path) -> None:
    """Writes a dataclass. The file is there at once: what ends the process in the middle costs nothing of what was
    there before.

    Raises:
        BenchError: the file cannot be written.
    """
    text = json.dumps({"format": FORMAT, "kind": kind, **asdict(results)}, indent=1)
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
