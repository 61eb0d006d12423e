"""The stage ``models``: ``python -m bench systems`` of whole models, in every way to train."""

from __future__ import annotations

import json
from collections.abc import Iterator
from statistics import median
from typing import Any

from bench.gpu.cases import Case, Done
from bench.gpu.place import Place
from bench.gpu.results import FAILED, MISSED, NOT_REACHED, OK, SKIPPED, Row

_SECONDS = 480
_PLAIN = "plain"
_CLAIMS = ["smaller", "planned"]
_MORE = 1.05  # of a plan's peak that may be taken: blocks of torch's allocator are rounded up, and lie apart


def cases(place: Place) -> list[Case]:
    """One, which stops itself."""
    file = place.out / f"systems-{'dry' if place.dry else place.device}.json"
    file.unlink(missing_ok=True)
    options = ["--gpu", "--quick", "--threads", "1"] if place.dry else []
    command = ["systems", *options, "--device", place.device, "--deadline", str(_SECONDS), "--json", str(file)]

    def read(done: Done) -> Iterator[Row]:
        yield from rows(json.loads(file.read_text()), done)

    return [Case("every model in every way", place.python("bench", *command), _SECONDS + 40, _CLAIMS, read=read)]


def rows(results: dict[str, Any], done: Done) -> Iterator[Row]:
    """A row for each model and way, plain training's first."""
    plain = {cell["subject"]: cell["peak_bytes"] for cell in results["cells"] if cell["way"] == _PLAIN}
    for cell in results["cells"]:
        name = f"{cell['subject']}: {cell['way']}"
        if cell.get("failure"):
            yield Row(name, FAILED, cell["failure"], claims=["smaller"])
        elif cell.get("does_not_apply"):
            yield Row(name, SKIPPED, cell["does_not_apply"])
        else:
            yield _measured(name, cell, plain.get(cell["subject"], 0))
    for line in results["skipped"]:
        yield Row("left out", NOT_REACHED, line, claims=_CLAIMS)
    if done.reason:
        yield Row("the command", FAILED, done.reason, claims=_CLAIMS)


def _measured(name: str, cell: dict[str, Any], plain: int) -> Row:
    values: dict[str, float | str] = {}
    peak = cell["peak_bytes"]
    if peak is not None:
        values["peak MiB"] = _mebibytes(peak)
    if peak is not None and plain:
        values["% of plain"] = round(100 * peak / plain)
    if cell["seconds"]:
        values["step ms"] = round(1e3 * median(cell["seconds"]), 2)
        if cell["plain_seconds"]:
            pairs = zip(cell["seconds"], cell["plain_seconds"], strict=False)
            values["over plain"] = round(median(one / other for one, other in pairs), 2)
    figures = cell.get("figures") or {}
    for kind in ("allocated", "active", "reserved"):
        if figures.get(f"{kind}_bytes") is not None:
            values[f"{kind} MiB"] = _mebibytes(figures[f"{kind}_bytes"])
    if figures.get("cpu_seconds"):
        values["CPU ms"] = round(1e3 * median(figures["cpu_seconds"]), 2)
    if figures.get("launches") is not None:
        values["launches"] = figures["launches"]
    claims, missed = [], []
    if cell["way"] != _PLAIN and plain and peak is not None:
        claims.append("smaller")
        if peak >= plain:
            missed.append("its peak is not below plain training's")
    if cell.get("planned_bytes") and peak is not None:
        claims.append("planned")
        if peak > _MORE * cell["planned_bytes"]:
            missed.append(f"its plan said {_mebibytes(cell['planned_bytes'])} MiB")
    return Row(name, MISSED if missed else OK, "; ".join(missed), 0, values, claims)


def _mebibytes(count: int) -> float:
    return round(count / 2**20, 1)
