"""``to_text``: what rich prints, as plain text."""

from __future__ import annotations

import shutil
from io import StringIO

from rich.console import Console, RenderableType


def to_text(content: RenderableType, width: int | None = None) -> str:
    """Return what rich prints of some content, without space at the ends of lines.

    Args:
        content: a table, for example.
        width: characters of a line; ``None``: the width of the terminal, and 160 without one, as in a log file.
    """
    text = StringIO()
    # In a notebook, rich would otherwise display the content, and print nothing; and FORCE_COLOR would bring colors.
    console = Console(file=text, width=width or get_width(), force_jupyter=False, force_terminal=False)
    console.print(content)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())


def get_width(without_terminal: int = 160) -> int:
    """Return the characters of a terminal's line."""
    return shutil.get_terminal_size((without_terminal, 50)).columns
