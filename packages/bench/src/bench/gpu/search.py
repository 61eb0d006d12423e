"""The stage ``search``: ``python -m bench search``, the largest batch within 16 GiB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from bench.gpu.cases import Case, Done
from bench.gpu.place import Place
from bench.gpu.results import FAILED, MISSED, NOT_REACHED, OK, SKIPPED, Row
from bench.gpu.to_deadline import to_deadline

if TYPE_CHECKING:
    from bench.results.record import Record

_PLAIN = "plain"
_PUBLISHED: Sequence[tuple[str, str, str, str, float]] = (  # whose, what is searched, ways, claim, times the batch
    ("GACT", "resnet50-batch", "L", "resnet50-gact", 4.2),
    ("ActNN", "resnet50-batch", "Q-layers", "resnet50-actnn", 6.6),
    ("GACT", "bert-large-batch", "L", "bert-gact", 24.7),
)


def cases(place: Place) -> list[Case]:
    """One, which stops itself."""
    small = ["--quick", "--threads", "1"] if place.dry else []
    return [to_deadline(place, "every search in every way", ["search", "--gpu", *small], rows)]


def rows(record: Record, done: Done) -> Iterator[Row]:
    """A row for each search and way, then one for each that was published: the most of its kind of ways."""
    from bench.suites.search.results import Search  # imports actcore, which the stage `build` makes

    searches = record.of(Search)
    plain = {search.dimension: search.largest for search in searches if search.way == _PLAIN}
    whole = not done.reason and not record.skipped and all(search.ended for search in searches)
    most: dict[tuple[str, str], float] = {}
    for search in searches:
        dimension, way, largest = search.dimension, search.way, search.largest or search.most
        values: dict[str, float | str] = {"largest": largest or 0, "trials": len(search.trials)}
        if largest and (beside := plain.get(dimension)):
            values["times plain"] = round(largest / beside, 2)
            most[dimension, way] = largest / beside
        outcome, reason = OK, ""
        if search.refusal:
            outcome, reason = SKIPPED, search.refusal
        elif search.crash:
            outcome, reason = FAILED, search.crash
        elif not search.ended:
            outcome, reason = NOT_REACHED, "at least this; the time was over"
        yield Row(f"{dimension}: {way}", outcome, reason, values=values)
    for whose, dimension, begin, claim, published in _PUBLISHED:
        found = {way: times for (of, way), times in most.items() if of == dimension and way.startswith(begin)}
        yield _beside(f"{dimension}: {whose}'s {published} times", found, claim, published, whole)
    for line in record.skipped:
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
