"""A case of a stage: one process, and how its rows are read from what it left."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.gpu.results import FAILED, OK, Row

_LONGEST = 500  # characters of a reason


@dataclass(frozen=True)
class Done:
    """How a process ended.

    Attributes:
        code: with which it ended, negative for a signal.
        output: that it wrote, stdout and stderr.
        seconds: that it took.
        over: whether it was ended, because its time was over or the run was interrupted.
        interrupted: whether it was the latter.
    """

    code: int
    output: str
    seconds: float
    over: bool = False
    interrupted: bool = False

    @property
    def reason(self) -> str:
        """What it failed with, in a line; empty where it did not fail."""
        if self.interrupted:
            return f"interrupted after {self.seconds:.0f} s"
        if self.over:
            return f"ended after {self.seconds:.0f} s, its time was over"
        if self.code == 0:
            return ""
        last = (self.output.strip().splitlines() or ["it wrote nothing"])[-1]
        return in_a_line(f"exit status {self.code}: {last}")

    @property
    def answer(self) -> Any:
        """The JSON of its last line; ``None`` where there is none."""
        for line in reversed(self.output.strip().splitlines()):
            if line.startswith(("{", "[")):
                try:
                    return json.loads(line)
                except ValueError:
                    return None
        return None


Read = Callable[[Done], Iterable[Row]]


@dataclass(frozen=True)
class Case:
    """One process of a stage.

    Attributes:
        name: in tables.
        command: that is run in the repository's root.
        seconds: that it may take.
        claims: that its row speaks for.
        environment: that it has besides.
        read: its rows; ``None``: one row, by the exit status. Also asked where the process was ended or failed.
        missing: why it cannot run here; empty where it can.
        within: what its command has besides, by the seconds that it is given: what stops itself leaves results.
    """

    name: str
    command: Sequence[str]
    seconds: float
    claims: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    read: Read | None = None
    missing: str = ""
    within: Callable[[float], Sequence[str]] = lambda seconds: ()

    def rows(self, done: Done) -> list[Row]:
        """What it came to."""
        if self.read is not None:
            try:
                return list(self.read(done))
            except Exception as error:  # of whatever a process left: the other cases go on
                reason = done.reason or f"its results cannot be read ({type(error).__name__}: {error})"
                return [self.row(FAILED, in_a_line(reason), done)]
        return [self.row(FAILED if done.reason else OK, done.reason, done)]

    def row(self, outcome: str, reason: str, done: Done | None = None) -> Row:
        """One row for all of it."""
        seconds = round(done.seconds, 1) if done is not None else 0.0
        return Row(self.name, outcome, reason, seconds, claims=list(self.claims))


def in_a_line(text: str) -> str:
    """A text as a reason: one line, and not a long one."""
    return textwrap.shorten(" ".join(text.split()), _LONGEST, placeholder=" ...")
