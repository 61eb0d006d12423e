"""Searches beside the plain one of the same dimension."""

from __future__ import annotations

from bench.results.record import Record
from bench.search.results import Search, Trial, search_of
from bench.systems.ways import PLAIN


def times_plain(record: Record, search: Search) -> float | None:
    """A way's largest number over the plain one's; ``None`` where one is not known."""
    plain = search_of(record, search.dimension, PLAIN)
    return search.largest / plain.largest if plain and plain.largest and search.largest else None


def relative_throughput(record: Record, search: Search) -> float | None:
    """Items per second at a way's largest number, over the plain way's at its own; ``None`` where one is not known."""
    plain = search_of(record, search.dimension, PLAIN)
    reference = plain.best if plain else None
    if search.best is None or reference is None or not reference.throughput or not search.best.throughput:
        return None
    return search.best.throughput / reference.throughput


def proof(record: Record, search: Search) -> Trial | None:
    """The plain trial at a way's largest number, if that is more than the plain way's."""
    plain = search_of(record, search.dimension, PLAIN)
    if plain is None or not search.largest or search.largest <= (plain.largest or 0):
        return None
    return plain.trial(search.largest)
