"""Files that are written whole or not at all."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path


@contextmanager
def written_whole(path: str | PathLike[str]) -> Iterator[Path]:
    """A block that writes the file of the name that it is given, which takes the place of ``path`` at the end. Where
    the block raises, as on a full disk, what was there stays, and nothing else is left."""
    asked = Path(path)
    if asked.exists() and not asked.is_file():  # such as /dev/stdout, which nothing shall take the place of
        yield asked
        return
    whole = asked.resolve()  # a link stays one
    # A name of its own, whoever else writes the file meanwhile; the ending names the type of a chart.
    part = whole.with_name(f".{whole.stem}.{secrets.token_hex(4)}.part{whole.suffix}")
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
