"""Results of a stage as text: what it settles, then its rows."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.gpu.claims import CLAIMS
from bench.gpu.results import OK, Row, StageResults
from bench.results.machine import Machine
from bench.results.tables import columns, header, short

_REASON = 70  # characters of a reason in a table; the file has all of it


def render(results: StageResults, machine: Machine) -> RenderableType:
    """Header, rows, what failed in full, and what is settled."""
    return Group(head(results, machine), *parts(results))


def head(results: StageResults, machine: Machine) -> Text:
    """The header of a stage."""
    dry = "; a dry run, which settles nothing" if not results.measured else ""
    return header(f"GPU, stage {results.stage}{dry}", machine, results.seconds)


def parts(results: StageResults) -> Iterator[RenderableType]:
    """Rows, what failed in full, and what is settled."""
    yield table(results)
    yield Text("\n".join(f"{row.case}: {row.outcome}: {row.reason}" for row in failed(results)))
    yield claims(results)


def table(results: StageResults) -> Table:
    """A line for each row."""
    headings = list(dict.fromkeys(heading for row in results.rows for heading in row.values))
    seconds = ["s"] if any(row.seconds for row in results.rows) else []
    broken = [heading.replace(" ", "\n") for heading in headings]  # so that many columns fit beside each other
    made = columns(results.stage, *broken, *seconds, "outcome")
    for column, heading in zip(made.columns[1:], [*headings, *seconds, "outcome"], strict=True):
        if heading in ("outcome", *_texts(results)):
            column.justify, column.no_wrap = "left", False
    for row in results.rows:
        cells = [_cell(row.values.get(heading, "")) for heading in headings]
        cells += [f"{row.seconds:.1f}" if row.seconds else ""] * len(seconds)
        made.add_row(row.case, *cells, outcome(row))
    return made


def claims(results: StageResults) -> Table:
    """A line for each claim of the stage: whether it holds."""
    made = columns(f"what the stage {results.stage} settles", "verdict", labels=2)
    for name, text in CLAIMS[results.stage].items():
        made.add_row(text, results.verdict(name))
    return made


def failed(results: StageResults) -> Iterator[Row]:
    """Rows whose reason does not fit into the table."""
    return (row for row in results.rows if row.outcome != OK and len(row.reason) > _REASON)


def outcome(row: Row) -> str:
    """Of a row, with its reason."""
    if row.outcome == OK and not row.reason:
        return OK
    return f"{row.outcome}: {short(row.reason, _REASON)}" if row.reason else row.outcome


def _texts(results: StageResults) -> set[str]:
    return {heading for row in results.rows for heading, value in row.values.items() if isinstance(value, str)}


def _cell(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,}"
