"""``python -m bench report``: a Markdown page for each recorded file, and one for the fields that files have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bench.cli import suites
from bench.cli.suites import RECORDS
from bench.errors import BenchError
from bench.results.entry import COORDINATE
from bench.results.machine import Machine
from bench.results.record import Kind, Record
from bench.results.tables import table

Row = tuple[str, str, str, str]
"""A part or ``settings``, a name, its unit, and what it is."""


def declared(kind: Kind) -> Table:
    """A row for each setting, coordinate and metric of a kind; names of coordinates have a star."""
    return table(
        _fields(kind),
        ("part", lambda row: row[0]),
        ("name", lambda row: row[1]),
        ("unit", lambda row: row[2]),
        ("what it is", lambda row: row[3]),
        labels=4,
    )


def _fields(kind: Kind) -> Iterator[Row]:
    for name, words in {**kind.settings, **kind.others}.items():
        yield "settings", name, "", words
    for entry in kind.entries:
        for name, role, unit, words in entry.declared():
            yield entry.part, f"{name} *" if role == COORDINATE else name, unit, words


FIELDS = "fields.md"


def render_pages(files: Iterable[Path]) -> dict[str, str]:
    """Return the text of each page by its name: ``gnn-cpu.md`` for ``gnn-cpu.json``, and ``fields.md``.

    Raises:
        BenchError: a file cannot be read, or holds something else.
    """
    pages = {f"{file.stem}.md": render_record(file.name, suites.load(file)) for file in files}
    return {**pages, FIELDS: render_fields()}


def render_record(name: str, record: Record) -> str:
    """Return the page of a record: which run made it, then each table as a section, then the notes."""
    _, report = RECORDS[record.kind]
    _, *parts = report.render(record).renderables  # the first is the header, which describe_run replaces
    sections = [f"# {name}", f"{report.title}. {describe_run(record)}", *(_to_section(part) for part in parts)]
    return "\n\n".join(filter(None, sections)) + "\n"


def render_fields() -> str:
    """Return the page of all settings, coordinates and metrics, with a section for each kind of record."""
    sections = (f"## {name}\n\n{to_markdown(declared(kind))}" for name, (kind, _) in RECORDS.items())
    return "\n\n".join(["# Fields of recorded files", *sections]) + "\n"


def to_markdown(table: Table) -> str:
    """Return a table in Markdown, one line for each row."""
    columns = table.columns
    heads = [_to_cell(column.header) for column in columns]
    ends = ["---:" if column.justify == "right" else "---" for column in columns]
    rows = zip(*(map(_to_cell, column.cells) for column in columns), strict=True)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, ends, *rows))


def describe_run(record: Record) -> str:
    """Return the commands, machine, versions, commits and date of a record, in one line.

    Entries may have commits of their own, where a run went on with a file; a plus says that files differed from one.
    """
    machine: Machine = record.machine
    own = {f"{commit[:10]}{'+' * commit.endswith('+')}" for commit in _find_commits(record)}
    commit = f"commit {machine.commit[:10]}{' with changes' if machine.dirty else ''}"
    if own:
        commit = f"commit{'s' * (len(own) > 1)} {', '.join(sorted(own))}"
    threads = f"{machine.threads} thread{'s' * (machine.threads > 1)}"
    versions = ", ".join(f"{name} {number}" for name, number in machine.versions.items())
    commands = ", ".join(f"`{command}`" for command in machine.commands)
    return f"{commands}; {machine.processor}, {threads}, {machine.system}; {versions}; {commit}; {machine.date}."


def write_pages(pages: dict[str, str], folder: Path, *, check: bool) -> list[str]:
    """Write pages into a folder, and return the names of those that were out of date.

    Args:
        pages: text by name.
        folder: of the pages.
        check: write nothing.

    Raises:
        BenchError: a page cannot be written.
    """
    stale = [name for name, text in pages.items() if _read(folder / name) != text]
    for name in [] if check else stale:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(pages[name], encoding="utf-8")
        except OSError as error:
            raise BenchError(f"{folder / name} cannot be written ({error.strerror})") from error
    return stale


def _read(page: Path) -> str | None:
    return page.read_text(encoding="utf-8") if page.is_file() else None


def _to_section(part: RenderableType) -> str:
    """A table with a heading, or the lines of a text as a list."""
    if isinstance(part, Table):
        title = part.title or part.columns[0].header
        return f"## {_to_cell(title)}\n\n{to_markdown(part)}"
    lines = (str(part.plain) if isinstance(part, Text) else str(part)).splitlines()
    return "\n".join(f"- {line.strip()}" for line in lines if line.strip())


def _to_cell(content: object) -> str:
    """A cell in one line; a bold one stays bold."""
    text = content.plain if isinstance(content, Text) else str(content)
    line = " ".join(text.split()).replace("|", "\\|")
    return f"**{line}**" if line and isinstance(content, Text) and content.style == "bold" else line


def _find_commits(entry: object) -> Iterator[str]:
    """Of all entries in lists of an entry, also in lists of those."""
    for value in vars(entry).values():
        for one in value if isinstance(value, list) else ():
            if is_dataclass(one):
                yield from filter(None, (getattr(one, "commit", ""),))
                yield from _find_commits(one)
