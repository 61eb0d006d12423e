"""A progress bar on stderr; where that is no terminal, a line for each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def progress(name: str, total: int) -> Iterator[Callable[[str], None]]:
    """A function to call after each of ``total`` steps, with what the step was."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=total)

        def advance(what: str) -> None:
            bar.update(task, advance=1, description=what)
            if not bar.console.is_terminal:
                bar.console.print(f"{what}: done")

        yield advance
