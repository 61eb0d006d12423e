"""A sign behind a number that has a target."""

from __future__ import annotations

from typing import Final, Literal

from rich.text import Text

UNDECIDED: Final = "undecided"
"""A target that the measurements neither show to be reached nor to be missed."""

Reached = bool | Literal["undecided"] | None
"""Whether a target is reached; ``None`` where there is none, or nothing to judge by."""

_MARKS = {
    True: Text("✓", style="green"),
    False: Text("✗", style="bold red"),
    UNDECIDED: Text("?", style="yellow"),
}


def marked(text: str, reached: Reached) -> Text:
    """``text`` with a sign that says whether its target is reached; as wide where there is none."""
    return Text(f"{text}  ") if reached is None else Text.assemble(text, " ", _MARKS[reached])
