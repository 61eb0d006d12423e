"""The stage ``search``: ``python -m bench search``, the largest batch within 16 GiB."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from bench.gpu.cases import Case, Done
from bench.gpu.place import Place
from bench.gpu.results import FAILED, MISSED, NOT_REACHED, OK, SKIPPED, Row

_SECONDS = 480
_PLAIN = "plain"
_PUBLISHED: Sequence[tuple[str, str, str, str, float]] = (  # whose, what is searched, ways, claim, times the batch
    ("GACT", "resnet50-batch", "L", "resnet50-gact", 4.2),
    ("ActNN", "resnet50-batch", "Q-layers", "resnet50-actnn", 6.6),
    ("GACT", "bert-large-batch", "L", "bert-gact", 24.7),
)


def cases(place: Place) -> list[Case]:
    """One, which stops itself."""
    file = place.out / f"search-{'dry' if place.dry else place.device}.json"
    file.unlink(missing_ok=True)
    options = ["--quick", "--threads", "1"] if place.dry else []
    command = ["search", "--gpu", *options, "--device", place.device, "--deadline", str(_SECONDS), "--json", str(file)]

    def read(done: Done) -> Iterator[Row]:
        yield from rows(json.loads(file.read_text()), done)

    return [Case("every search in every way", place.python("bench", *command), _SECONDS + 40, read=read)]


def rows(results: dict[str, Any], done: Done) -> Iterator[Row]:
    """A row for each search and way, then one for each that was published: the most of its kind of ways."""
    searches = results["searches"]
    plain = {search["dimension"]: search["largest"] for search in searches if search["way"] == _PLAIN}
    whole = not done.reason and not results["skipped"] and all(search["ended"] for search in searches)
    most: dict[tuple[str, str], float] = {}
    for search in searches:
        dimension, way, largest = search["dimension"], search["way"], search["largest"]
        values: dict[str, float | str] = {"largest": largest or 0, "trials": len(search["trials"])}
        if largest and plain.get(dimension):
            values["times plain"] = round(largest / plain[dimension], 2)
            most[dimension, way] = largest / plain[dimension]
        reason = "" if search["ended"] else "at least this; the time was over"
        yield Row(f"{dimension}: {way}", OK if search["ended"] else NOT_REACHED, reason, values=values)
    for whose, dimension, begin, claim, published in _PUBLISHED:
        found = {way: times for (of, way), times in most.items() if of == dimension and way.startswith(begin)}
        yield _beside(f"{dimension}: {whose}'s {published} times", found, claim, published, whole)
    for line in results["skipped"]:
        yield Row("left out", NOT_REACHED, line)
    if done.reason:
        yield Row("the command", FAILED, done.reason)


def _beside(name: str, found: dict[str, float], claim: str, published: float, whole: bool) -> Row:
    if not found:
        outcome = SKIPPED if whole else NOT_REACHED
        return Row(name, outcome, "no way of the kind was searched to its end", claims=[claim])
    way, times = max(found.items(), key=lambda entry: entry[1])
    reached = times >= published
    outcome = OK if reached else MISSED if whole else NOT_REACHED
    return Row(name, outcome, f"{way} has the most", values={"times plain": round(times, 2)}, claims=[claim])
