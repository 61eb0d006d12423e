"""Records as JSON: each list of numbers on one line, each file whole or not at all."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

from bench.errors import BenchError
from bench.results.machine import Machine
from bench.results.record import Kind, Record
from integrations._common.entries import loaded

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


@contextmanager
def written_whole(path: str | PathLike[str]) -> Iterator[Path]:
    """A block that writes the file of the name that it is given, which takes the place of ``path`` at the end. Where
    the block raises, as on a full disk, what was there stays, and nothing else is left."""
    asked = Path(path)
    if asked.exists() and not asked.is_file():  # such as /dev/stdout, which nothing shall take the place of
        yield asked
        return
    whole = asked.resolve()  # a link stays one
    part = whole.with_name(f".{whole.stem}.{os.getpid()}.part{whole.suffix}")  # the ending names the type of a chart
    try:
        yield part
        if whole.exists():
            part.chmod(whole.stat().st_mode & 0o7777)
        part.replace(whole)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_text(path: str | PathLike[str], text: str) -> None:
    """Writes a text in UTF-8, whole or not at all."""
    with written_whole(path) as part:
        part.write_text(text, encoding="utf-8")
