"""Records as JSON: each list of numbers on one line, each file whole or not at all."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.errors import BenchError
from bench.results.machine import Machine
from bench.results.record import Kind, Record
from integrations._utils.checked_json import loaded
from integrations._utils.whole_files import write_text

FORMAT = 2


def save(record: Record, path: Path) -> None:
    """Writes a record. The file is there at once: what ends the process in the middle costs nothing of what was there
    before.

    Raises:
        BenchError: the file cannot be written.
    """
    content = {
        "format": FORMAT,
        "kind": record.kind,
        "machine": asdict(record.machine),
        "settings": record.settings,
        "skipped": record.skipped,
        "seconds": record.seconds,
        "entries": [entry.content() for entry in record.entries],
    }
    text = json.dumps(content, indent=1)
    text = re.sub(r"\[[-+.\deE,\s]+\]", lambda numbers: f"[{' '.join(numbers.group()[1:-1].split())}]", text)
    try:
        write_text(path, text + "\n")
    except OSError as error:
        raise BenchError(f"results cannot be written to {path} ({error.strerror}); name another file") from error


def load(path: Path, kind_of: Callable[[str], Kind]) -> Record:
    """Reads what ``save`` wrote.

    Args:
        path: of the file.
        kind_of: gives the kind of a name.

    Raises:
        BenchError: the file cannot be read, or holds something else.
    """
    try:
        return _record(loaded(path.read_text(), "save"), kind_of)
    except OSError as error:
        raise BenchError(f"results cannot be read from {path} ({error.strerror})") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BenchError(f"{path} holds no results of `python -m bench ... --json` ({error})") from error


def _record(content: dict[str, Any], kind_of: Callable[[str], Kind]) -> Record:
    if content.pop("format") != FORMAT:
        raise ValueError("another format")
    kind = kind_of(content["kind"])
    kind.require_settings(content["settings"])
    machine = Machine(**content.pop("machine"))
    entries = [kind.entry_of(entry) for entry in content.pop("entries")]
    return Record(machine=machine, entries=entries, **content)
