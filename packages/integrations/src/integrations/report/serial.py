"""A report as JSON, and back."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any

import torch

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


def fields_of(text: str) -> dict[str, Any]:
    """The arguments of ``Report``. See ``Report.from_json``."""
    try:
        told = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"text must be what to_json returned, and is no JSON: {error}") from error
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise ValueError(f"text must be what to_json returned, got JSON without 'format': {FORMAT!r}")
    if told.get("version") != VERSION:
        raise ValueError(f"text must be of version {VERSION}, got {told.get('version')!r}; write the report again")
    try:
        rows = [_row(**row) for row in told.pop("rows")]
        return {**{name: value for name, value in told.items() if name not in (*_HEAD, *_SUMS)}, "rows": rows}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"text must be what to_json returned, and its rows are not: {error!r}") from error


def _row(*, shape: list[int], dtype: str, **others: Any) -> Row:
    found = getattr(torch, dtype)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"{dtype} is no dtype of torch")
    return Row(shape=tuple(shape), dtype=found, **others)
