"""What the reports share: the header, and tables without lines between their columns."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.machine import Machine

WIDTH = 160  # what the tables take


def console() -> Console:
    """A console wide enough for the tables. A narrower terminal breaks its lines, but no number is cut short."""
    return Console(width=max(WIDTH, Console().width))


def header(title: str, machine: Machine, seconds: float) -> Text:
    """What was measured, where, how and for how long."""
    return Text.assemble(
        (f"{title}\n", "bold"),
        ("machine  ", "dim"),
        f"{machine}\n",
        ("command  ", "dim"),
        f"{commands(machine)}; {seconds / 60:.1f} minutes\n",
    )


def commands(machine: Machine) -> str:
    """All that made the results, below one another in a header."""
    return "\n         ".join(machine.commands)


def columns(*headings: str, labels: int = 1) -> Table:
    """An empty table; all columns but the first ``labels`` are of numbers."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for place, heading in enumerate(headings):
        made.add_column(heading, justify="left" if place < labels else "right", no_wrap=True)
    return made


def short(text: str, most: int = 60) -> str:
    """A text for a cell, of at most so many characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
