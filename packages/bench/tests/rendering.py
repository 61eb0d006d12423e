"""What tests ask of records: the machine that they were made on, what is printed of them, and charts."""

from __future__ import annotations

import io

from rich.console import Console

from bench.cli.suites import find_report
from bench.results.machine import Machine
from bench.results.tables import WIDTH

MACHINE = Machine("a processor", 2, "Linux", {"torch": "2.15.0"}, "0123456789abcdef", False, "python", "today")


def printed(record, width=WIDTH):
    """The text of a record: header, tables and notes."""
    written = io.StringIO()
    Console(file=written, width=width, color_system=None).print(find_report(record).render(record))
    return written.getvalue()


def words(record, width=WIDTH):
    """The same on one line, so that no line break is in what is looked for."""
    return " ".join(printed(record, width).split())


def panels(record):
    """The panels of a record's chart."""
    return find_report(record).panels(record)


def draw(record, file):
    """A record's chart in a file."""
    find_report(record).save_chart(record, file)
