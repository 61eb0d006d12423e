"""``python -m bench report``: the tables and charts of a page, made of recorded results.

A page says which, and what is between is replaced::

    <!-- table systems-cpu.json: BERT -->
    <!-- /table -->

    <!-- chart systems-cpu.json: images/systems.png: Peaks and times of eight models -->
    <!-- /chart -->

    <!-- readme fewbit -->
    <!-- /readme -->

    <!-- stage kernels -->
    <!-- /stage -->

    <!-- entries systems -->
    <!-- /entries -->

A table's name is how its headings begin, as ``python -m bench show`` prints them, with `` | `` between; most often a
part of the first is enough. A chart has a place beside the page, and words for those who do not see it. A README's
table is one of ``bench.readmes``. A stage is one of ``tools/gpu.sh``, whose results are in ``gpu-kernels.json``; where
that file is not there, the page says that nothing was measured, and what would be settled. Entries are those of a kind
of record, as its bench declares them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from bench.cli import records
from bench.cli.suites import RECORDS
from bench.errors import BenchError
from bench.gpu import report as stages
from bench.gpu.claims import CLAIMS
from bench.gpu.results import StageResults
from bench.readmes.tables import TABLES
from bench.results.declared import declared
from bench.results.machine import Machine
from bench.results.record import Record

_MARKED = re.compile(
    r"(?P<begin><!-- (?P<kind>table|chart|readme|stage|entries) (?P<what>[^\n]+?) -->\n)"
    r".*?(?P<end><!-- /(?P=kind) -->)",
    re.DOTALL,
)
_BEGUN = re.compile(r"<!-- (?:table|chart|readme|stage|entries) ")


@dataclass
class Page:
    """A page with its tables made anew.

    Attributes:
        text: of the page.
        charts: what draws each of its charts, by place beside the page; nothing has been drawn.
    """

    text: str
    charts: dict[str, Callable[[Path], None]] = field(default_factory=dict)


def rendered(page: str, folder: Path) -> Page:
    """A page with its tables made anew.

    Args:
        page: its text.
        folder: of the results.

    Raises:
        BenchError: results cannot be read, have no such table, or a mark has no end.
    """
    maker = _Maker(folder)
    begun = len(_BEGUN.findall(page))
    made, count = _MARKED.subn(maker.between, page)
    if count != begun:
        raise BenchError(
            f"{begun} tables and charts begin in the page and {count} have a form that is known and an end, such as "
            "<!-- /table -->"
        )
    return Page(made, maker.charts)


class _Maker:
    """Makes what is between marks, and reads each file of results once."""

    def __init__(self, folder: Path) -> None:
        self.charts: dict[str, Callable[[Path], None]] = {}
        self._folder = folder
        self._found: dict[str, Record] = {}
        self._said: set[str] = set()

    def between(self, match: re.Match[str]) -> str:
        """A mark, what it asks for, and its end."""
        kinds = {
            "table": self._table,
            "chart": self._chart,
            "readme": self._readme,
            "stage": self._stage,
            "entries": self._entries,
        }
        made = kinds[match["kind"]](match["what"])
        return f"{match['begin']}{made}\n{match['end']}"

    def _table(self, what: str) -> str:
        file, name = _parts(what, 2, "<!-- table FILE: HEADING -->")
        results = self._results(file)
        tables = _tables(results)
        found = [one for one in tables if one.startswith(name)]
        # A name that is the whole of a heading is that table's, though others begin with it.
        found = [one for one in found if f"{one} | ".startswith(f"{name} | ")] or found
        if len(found) != 1:
            has = f"has {len(found)} tables" if found else "has no table"
            titles = [heading.partition(" | ")[0] for heading in found or tables]
            raise BenchError(f"{file} {has} {name!r}; it has {', '.join(map(repr, titles)) or 'none'}")
        return self._with_where(to_markdown(tables[found[0]]), results)

    def _chart(self, what: str) -> str:
        file, place, words = _parts(what, 3, "<!-- chart FILE: PLACE: WORDS -->")
        results = self._results(file)
        self.charts[place] = lambda path: records.draw(results, path)
        return f"![{words}]({place})"

    def _readme(self, what: str) -> str:
        if what not in TABLES:
            raise BenchError(f"there is no table {what!r} of a README; there are {', '.join(TABLES)}")
        made = TABLES[what](self._folder)
        return self._with_where(to_markdown(made.table), *made.results)

    def _stage(self, what: str) -> str:
        if what not in CLAIMS:
            raise BenchError(f"there is no stage {what!r} of tools/gpu.sh; there are {', '.join(CLAIMS)}")
        file = f"gpu-{what}.json"
        if not (self._folder / file).exists():
            settled = "\n".join(f"- {claim}" for claim in CLAIMS[what].values())
            return f"**Not measured on a GPU yet.** What `tools/gpu.sh {what}` would settle:\n\n{settled}"
        record = self._results(file)
        results = record.find(StageResults, stage=what)
        if results is None or not results.measured:
            raise BenchError(f"{file} must hold the stage {what}, run on a GPU and not --dry; leave other files out")
        tables = [to_markdown(one) for one in (stages.claims(results), stages.table(results))]
        failed = [f"- {row.case}: {row.outcome}: {row.reason}" for row in stages.failed(results)]
        return self._with_where("\n\n".join([*tables, *filter(None, ["\n".join(failed)])]), record)

    def _entries(self, what: str) -> str:
        if what not in RECORDS:
            raise BenchError(f"there is no kind of record {what!r}; there are {', '.join(RECORDS)}")
        kind, _ = RECORDS[what]
        return to_markdown(declared(kind))

    def _with_where(self, made: str, *all_results: Record) -> str:
        """A table, and below it what made its numbers, which a page says of each file once."""
        said = [where(results) for results in all_results]
        new = [line for line in said if line not in self._said]
        self._said.update(new)
        return "\n\n".join([made, *new])

    def _results(self, file: str) -> Record:
        if file not in self._found:
            self._found[file] = records.load(self._folder / file)
        return self._found[file]


def _parts(what: str, count: int, form: str) -> Sequence[str]:
    parts = [part.strip() for part in what.split(":", count - 1)]
    if len(parts) != count or not all(parts):
        raise BenchError(f"a mark must have the form {form}, got {what!r}")
    return parts


def to_markdown(table: Table) -> str:
    """A table as Markdown has it: one line a row."""
    columns = table.columns
    heads = [_cell(column.header) for column in columns]
    ends = ["---:" if column.justify == "right" else "---" for column in columns]
    rows = zip(*(map(_cell, column.cells) for column in columns), strict=True)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, ends, *rows))


def _tables(results: Record) -> dict[str, Table]:
    """By the headings of their columns, with lines between."""
    parts = records.shown(results).renderables
    return {
        " | ".join(_cell(column.header) for column in part.columns): part for part in parts if isinstance(part, Table)
    }


def _cell(content: object) -> str:
    """A cell in one line; a bold one stays bold."""
    text = content.plain if isinstance(content, Text) else str(content)
    line = " ".join(text.split()).replace("|", "\\|")
    return f"**{line}**" if line and isinstance(content, Text) and content.style == "bold" else line


def _commits(entry: object) -> Iterator[str]:
    """Of all that is in lists of an entry, lists of what is in lists among them."""
    for value in vars(entry).values():
        for one in value if isinstance(value, list) else ():
            if is_dataclass(one):
                yield from filter(None, (getattr(one, "commit", ""),))
                yield from _commits(one)


def where(results: Record) -> str:
    """What made the numbers, in a line. Entries that were taken up say of which commit they are, with a plus where
    files differed from it."""
    machine: Machine = results.machine
    own = {f"{commit[:10]}{'+' * commit.endswith('+')}" for commit in _commits(results)}
    commit = f"commit {machine.commit[:10]}{' with changes' if machine.dirty else ''}"
    if own:
        commit = f"commit{'s' * (len(own) > 1)} {', '.join(sorted(own))}"
    threads = f"{machine.threads} thread{'s' * (machine.threads > 1)}"
    versions = ", ".join(f"{name} {number}" for name, number in machine.versions.items())
    commands = ", ".join(f"`{command}`" for command in machine.commands)
    return f"{commands}; {machine.processor}, {threads}, {machine.system}; {versions}; {commit}; {machine.date}."
