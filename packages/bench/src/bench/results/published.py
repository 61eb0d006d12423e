"""Numbers that others published: the data files in the folder ``published``, each with its sources."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def published(suite: str) -> dict[str, Any]:
    """Return what is published of a suite's subjects, as its file has it."""
    content: dict[str, Any] = json.loads((Path(__file__).with_suffix("") / f"{suite}.json").read_text("utf-8"))
    return content
