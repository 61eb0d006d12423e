"""``Report``: where the bytes of one forward's saved tensors went; as JSON, and back."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from os import PathLike
from typing import Any

import torch
from rich.console import Group
from rich.table import Table

from integrations._utils.checked_json import loaded, of_type, read_fields
from integrations._utils.rich_text import get_width, to_text
from integrations.report.content import Content
from integrations.report.plot import plot_report
from integrations.report.rank_summary import ranks_table
from integrations.report.report_page import write_page
from integrations.report.row import Row
from integrations.report.table import full_table, module_table, summary
from integrations.report.timeline import Moment, make_timeline

_NARROWEST = 60


@dataclass(frozen=True)
class Report(Content):
    """The tensors that the last compressed forward saved. ``str(report)`` is a summary: the model's parts to depth 2,
    without parts below 0.1 % and without wrappers of a single part.

    Attributes:
        level: name of the level, and what was changed of it: ``"L1 with bits=6"``.
        rows: one per saved tensor, in the order of saving.
        off: whether the level compresses nothing.
        offload: whether the level takes what is stored to host memory.
        plan: where the bits of an adaptive level come from, in words; empty at other levels.
        monitor: what the monitor found, in words; empty without one.
        recomputed: by which plan backward recomputes tensors, in words; empty without one.
        model: the model's class, for titles.
        note: how the report came about, where no step of a training made it, or why it is empty, where more is known
            than that no forward was compressed; empty otherwise.
        exchanged: which layers were exchanged for others that keep less, in words; empty if none.
        loss: whose loss was counted, in words; empty if none is known.
        gradient_bytes: bytes of the gradient of what the model returns, which the loss's backward makes; 0 if unknown.
        original_peak_bytes, peak_bytes: the most bytes that the step allocates at once, beyond those that are still
            allocated after backward; without compression and with it.
        peak_source: ``"planned"`` if a plan's simulation gave the peaks; ``"estimated"`` if they are estimated from
            saved tensors, usually too low, since temporary memory does not count; empty if they are not known.
        peak_note: what to know of the peaks, in words: that the forward left its plan, that the plan is for larger
            inputs, or that the peak was not measured.
        measured_peak_bytes: the largest peak that one of the plan's first steps was measured to take, on a GPU; 0 if
            none was measured.
        ranks: the sums of all ranks' reports, in a report of ``integrations.gather_report``; empty otherwise.
    """

    def table(self, depth: int | None = None) -> Table:
        """Return the report as a rich table of the tensors that autograd alone keeps, by module, with a row for each.

        The table fits a terminal of 80 columns, where long paths are shortened in the middle.

        Args:
            depth: lists modules down to this depth instead of tensors, 1 for the model's own parts.

        Raises:
            TypeError: ``depth`` is not an int.
            ValueError: ``depth`` is negative.
        """
        if depth is None:
            return full_table(self)
        if isinstance(depth, bool) or not isinstance(depth, int):
            raise TypeError(f"depth must be an int, got {depth!r}")
        if depth < 0:
            raise ValueError(f"depth must be 0 or more, got {depth}; 1 lists the model's own parts")
        return module_table(self, depth)

    def timeline(self) -> tuple[Moment, ...]:
        """Return the bytes stored at each moment of a step. They grow while the forward saves tensors, and shrink while
        the backward frees them in reverse order. Only saved tensors and ``gradient_bytes`` count, not temporary tensors
        of operators, nor other gradients."""
        return make_timeline(self.rows, self.gradient_bytes)

    def to_json(self) -> str:
        """All of the report as JSON, for ``Report.from_json`` and for other programs; sums are in it, too."""
        return _to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Return the report that ``to_json`` wrote.

        Raises:
            ValueError: the text is not JSON, or not of a report.
        """
        try:
            return cls(**_fields_in(text))
        except TypeError as error:
            raise ValueError(f"text must be what to_json returned, and no more or less: {error}") from error

    def plot(self, path: str | PathLike[str]) -> None:
        """Draw memory over one step, without compression and with it, and by module.

        Args:
            path: the file to write; its ending names the type: ``.png``, ``.svg``, ``.pdf``.

        Raises:
            ImportError: matplotlib is not installed.
            ValueError: nothing was saved, or matplotlib does not write this file type.
            OSError: the file cannot be written.
        """
        plot_report(self, path)

    def html(self, path: str | PathLike[str]) -> None:
        """Write an HTML page: sums, the chart of ``plot``, every tensor in a tree. Without matplotlib, the page has a
        note instead of the chart.

        Args:
            path: the file to write, in UTF-8.

        Raises:
            OSError: the file cannot be written.
        """
        write_page(self, path)

    def __str__(self) -> str:
        ranks = ("", ranks_table(self.ranks)) if self.ranks else ()
        return to_text(Group(summary(self), *ranks), max(get_width(), _NARROWEST))


FORMAT = "integrations report"
VERSION = 1
# For other programs; they are computed from the rows when read back.
_SUMS = ("original_bytes", "stored_bytes", "host_bytes", "ratio")
_HEAD = ("format", "version")
_NESTED = ("rows", "ranks")


def _to_json(report: Content) -> str:
    """See ``Report.to_json``."""
    told: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    told |= {field.name: getattr(report, field.name) for field in fields(report) if field.name not in _NESTED}
    told |= {name: getattr(report, name) for name in _SUMS}
    told["ranks"] = [asdict(one) for one in report.ranks]
    told["rows"] = [{**asdict(row), "dtype": str(row.dtype).removeprefix("torch.")} for row in report.rows]
    return json.dumps(told, indent=1)


def _fields_in(text: str) -> dict[str, Any]:
    """The arguments of ``Report``. See ``Report.from_json``."""
    told = loaded(text, "to_json")
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise ValueError(f"text must be what to_json returned, got JSON without 'format': {FORMAT!r}")
    if told.get("version") != VERSION:
        raise ValueError(f"text must be of version {VERSION}, got {told.get('version')!r:.40}; write the report again")
    try:
        rows = [_row(**row) for row in told.pop("rows")]
    except (KeyError, TypeError) as error:
        raise ValueError(f"text must be what to_json returned, and its rows are not: {error!r}") from error
    others = {name: entry for name, entry in told.items() if name not in (*_HEAD, *_SUMS)}
    try:
        return {**read_fields(Content, others), "rows": rows}
    except TypeError as error:
        raise ValueError(f"text must be what to_json returned, and no more or less: {error}") from error


def _row(*, shape: list[int], dtype: str, **others: Any) -> Row:
    # Looked up where torch has it, and not asked for: torch imports what it is asked for and does not have yet.
    found = vars(torch).get(dtype)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"{dtype!r:.40} is no dtype of torch")
    return Row(shape=of_type(tuple[int, ...], shape, "shape"), dtype=found, **read_fields(Row, others))
