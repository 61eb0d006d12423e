"""``python -m bench report``: the tables of a page, made of recorded results.

A page says which, and what is between is replaced::

    <!-- table systems-cpu.json: BERT -->
    <!-- /table -->

The name behind the colon is how the heading of the table's first column begins, as ``python -m bench show`` prints it.
"""

from __future__ import annotations

import re
from pathlib import Path

from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from bench import records
from bench.errors import BenchError
from bench.finish import shown
from bench.machine import Machine

_MARKED = re.compile(r"(<!-- table (?P<file>[\w.-]+): (?P<name>[^\n]+?) -->\n).*?(<!-- /table -->)", re.DOTALL)


def rendered(page: str, folder: Path) -> str:
    """A page with its tables made anew.

    Args:
        page: its text.
        folder: of the results.

    Raises:
        BenchError: results cannot be read, have no such table, or a mark has no end.
    """
    found: dict[str, records.AnyResults] = {}

    def table(match: re.Match[str]) -> str:
        file, name = match["file"], match["name"]
        if file not in found:
            found[file] = records.load(folder / file)
        tables = _tables(found[file])
        heading = next((one for one in tables if one.startswith(name)), None)
        if heading is None:
            raise BenchError(f"{file} has no table {name!r}; it has {', '.join(map(repr, tables)) or 'none'}")
        return f"{match[1]}{to_markdown(tables[heading])}\n\n{_where(found[file])}\n{match[4]}"

    begun = page.count("<!-- table ")
    made, count = _MARKED.subn(table, page)
    if count != begun:
        raise BenchError(
            f"{begun} tables begin in the page and {count} have a form that is known and an end, <!-- /table -->"
        )
    return made


def to_markdown(table: Table) -> str:
    """A table as Markdown has it: one line a row."""
    columns = table.columns
    heads = [_cell(column.header) for column in columns]
    ends = ["---:" if column.justify == "right" else "---" for column in columns]
    rows = zip(*(map(_cell, column.cells) for column in columns), strict=True)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, ends, *rows))


def _tables(results: records.AnyResults) -> dict[str, Table]:
    """By the heading of the first column."""
    text = shown(results)
    parts = text.renderables if isinstance(text, Group) else []
    return {_cell(_first(part).header): part for part in parts if isinstance(part, Table)}


def _first(table: Table) -> Column:
    return table.columns[0]


def _cell(content: object) -> str:
    """A cell in one line; a bold one stays bold."""
    text = content.plain if isinstance(content, Text) else str(content)
    line = " ".join(text.split()).replace("|", "\\|")
    return f"**{line}**" if line and isinstance(content, Text) and content.style == "bold" else line


def _where(results: records.AnyResults) -> str:
    """What made the numbers, in a line. Entries that were taken up say of which commit they are."""
    machine: Machine = results.machine
    lists = (entries for entries in vars(results).values() if isinstance(entries, list))
    own = {commit[:10] for entries in lists for entry in entries if (commit := getattr(entry, "commit", ""))}
    commit = f"commit {machine.commit[:10]}{' with changes' if machine.dirty else ''}"
    if own:
        commit = f"commit{'s' * (len(own) > 1)} {', '.join(sorted(own))}"
    threads = f"{machine.threads} thread{'s' * (machine.threads > 1)}"
    versions = ", ".join(f"{name} {number}" for name, number in machine.versions.items())
    return (
        f"`{machine.command}`; {machine.processor}, {threads}, {machine.system}; {versions}; {commit}; {machine.date}."
    )
