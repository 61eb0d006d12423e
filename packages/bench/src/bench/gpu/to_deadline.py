"""A stage of one command of ``bench`` that stops itself at a deadline, and goes on another time where it stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from bench.gpu.cases import Case, Done
from bench.gpu.place import Place
from bench.gpu.results import Row

_SECONDS = 480
_AROUND = 40  # seconds for what begins and ends with it

Rows = Callable[[Any, Done], Iterable[Row]]


def to_deadline(place: Place, name: str, command: Sequence[str], rows: Rows, claims: Sequence[str] = ()) -> Case:
    """The case of such a command. What its file has, that was cut off before, is not measured again.

    Args:
        place: where it runs.
        name: in tables.
        command: of ``python -m bench``, its name first.
        rows: of the results that its file has, and how it ended.
        claims: that its row speaks for where the file cannot be read.
    """
    file = place.out / f"{command[0]}-{'dry' if place.dry else place.device}.json"
    if place.dry:
        file.unlink(missing_ok=True)

    def read(done: Done) -> Iterator[Row]:
        place.make_importable()
        from bench.cli import records  # imports actcore, which the stage `build` makes

        yield from rows(records.load(file), done)

    whole = place.python("bench", *command, "--device", place.device, "--json", str(file))
    return Case(name, whole, _SECONDS + _AROUND, claims, read=read, within=_deadline)


def _deadline(given: float) -> list[str]:
    return ["--deadline", f"{max(1.0, min(_SECONDS, given - _AROUND)):.0f}"]
