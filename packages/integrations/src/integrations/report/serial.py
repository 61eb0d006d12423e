"""A report as JSON, and back."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any

import torch

from integrations._utils.checked_json import loaded, of_type, read_fields
from integrations.report.content import Content
from integrations.report.row import Row

FORMAT = "integrations report"
VERSION = 1
# For other programs; they are computed from the rows when read back.
_SUMS = ("original_bytes", "stored_bytes", "host_bytes", "ratio")
_HEAD = ("format", "version")


def to_json(report: Content) -> str:
    """See ``Report.to_json``."""
    told: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    told |= {field.name: getattr(report, field.name) for field in fields(report) if field.name != "rows"}
    told |= {name: getattr(report, name) for name in _SUMS}
    told["rows"] = [{**asdict(row), "dtype": str(row.dtype).removeprefix("torch.")} for row in report.rows]
    return json.dumps(told, indent=1)


def fields_in(text: str) -> dict[str, Any]:
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
