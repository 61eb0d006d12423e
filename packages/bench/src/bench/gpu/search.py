"""The stage ``search``: ``python -m bench search``, the largest batch within 16 GiB."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from bench.gpu.cases import Case, Done
from bench.gpu.place import Place
from bench.gpu.results import FAILED, MISSED, NOT_REACHED, OK, Row

_SECONDS, _DRY_SECONDS = 480, 240
_PLAIN = "plain"
_PUBLISHED: Sequence[tuple[str, str, str, float]] = (  # what is searched, beginning of the way, claim, times the batch
    ("resnet50", "L2.2", "resnet50-gact", 4.2),
    ("resnet50", "Q-layers", "resnet50-actnn", 6.6),
    ("bert-large", "L2.2", "bert-gact", 24.7),
)


def cases(place: Place) -> list[Case]:
    """One, which stops itself."""
    file = place.out / f"search-{'dry' if place.dry else place.device}.json"
    file.unlink(missing_ok=True)
    options = ["--quick", "--threads", "1"] if place.dry else []
    seconds = _DRY_SECONDS if place.dry else _SECONDS
    command = ["search", "--gpu", *options, "--device", place.device, "--deadline", str(seconds), "--json", str(file)]

    def read(done: Done) -> Iterator[Row]:
        yield from rows(json.loads(file.read_text()), done)

    return [Case("every search in every way", place.python("bench", *command), seconds + 40, read=read)]


def rows(results: dict[str, Any], done: Done) -> Iterator[Row]:
    """A row for each search and way."""
    searches = results["searches"]
    plain = {search["dimension"]: search["largest"] for search in searches if search["way"] == _PLAIN}
    for search in searches:
        name = f"{search['dimension']}: {search['way']}"
        values: dict[str, float | str] = {"largest": search["largest"] or 0, "trials": len(search["trials"])}
        before = plain.get(search["dimension"])
        times = search["largest"] / before if before and search["largest"] else None
        if times is not None:
            values["times plain"] = round(times, 2)
        claims, reason = [], ""
        for dimension, way, claim, published in _PUBLISHED:
            if search["dimension"].startswith(dimension) and search["way"].startswith(way) and times is not None:
                claims.append(claim)
                if times < published:
                    reason = f"published: {published} times"
        yield Row(name, MISSED if reason else OK, reason, values=values, claims=claims)
    for line in results["skipped"]:
        yield Row(line, NOT_REACHED, "the time was over, or what it takes is not there")
    if done.reason:
        yield Row("the command", FAILED, done.reason)
