"""A sign behind a number that has a target."""

from __future__ import annotations

from rich.text import Text

_MARKS = {True: Text("✓", style="green"), False: Text("✗", style="bold red")}


def marked(text: str, reached: bool | None) -> Text:
    """``text`` with a sign that says whether its target is reached; as wide where there is none."""
    return Text(f"{text}  ") if reached is None else Text.assemble(text, " ", _MARKS[reached])
