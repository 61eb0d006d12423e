"""The tables and the chart of ``python -m bench search``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table

from bench.results.charts import BLUE, ORANGE, Bar, Panel
from bench.results.published import published
from bench.results.record import Record
from bench.results.report import Report
from bench.results.tables import dim, number, short, table
from bench.suites.search.entries import Search, Trial, proof, relative_throughput, times_plain
from bench.units import MIB, size_name
from bench.ways.decoders import ALL_WAYS, label
from bench.ways.general import PLAIN


@dataclass(frozen=True)
class Figure:
    """The largest number that a system has reached.

    Attributes:
        system: the system, and how it was set.
        value: the number.
        plain: the number at full precision, of the same source.
        way: the way of ours that does the same; empty where none does.
    """

    system: str
    value: int
    plain: int
    way: str

    @property
    def ratio(self) -> float:
        """Over full precision's."""
        return self.value / self.plain

    def __str__(self) -> str:
        return f"{self.system}: {self.plain:,} -> {self.value:,}"


def figures(dimension: str) -> list[Figure]:
    """What was published of a dimension; nothing where the originals made no such search."""
    return [Figure(**row) for row in published("search")["figures"].get(dimension, ())]


def tables(record: Record) -> Iterator[Table]:
    """One for each dimension."""
    for dimension in record.values(Search, "dimension"):
        yield _table(record, record.of(Search, dimension=dimension))


def _table(record: Record, searches: Sequence[Search]) -> Table:
    first = searches[0]
    beside = {figure for search in searches for figure in _published(search)}

    def times(search: Search) -> str:
        ratio = times_plain(record, search)
        return "" if ratio is None else f"{'≥ ' * search.capped}{ratio:.2f}"

    def there(search: Search) -> str:
        trial = proof(record, search)
        return "" if trial is None else _outcome(trial)

    made = table(
        searches,
        (f"{first.title}\nwithin {size_name(first.memory_limit)}", lambda search: label(search.way)),
        ("largest", _largest),
        ("times plain's\nmeasured", times),
        ("times plain's\npublished", lambda search: ", ".join(f"{one.ratio:.2f}" for one in _published(search))),
        (f"{first.items}/s", lambda search: "" if search.best is None else number(search.best.throughput, ",.1f")),
        ("over\nplain's", lambda search: number(relative_throughput(record, search), ".2f")),
        ("plain\nthere", there),
        ("", lambda search: dim(_reason(search) or "; ".join(map(str, _published(search))))),
    )
    for figure in figures(first.dimension):
        if figure not in beside:
            made.add_row("", "", "", f"{figure.ratio:.2f}", "", "", "", dim(str(figure)))
    return made


def _published(search: Search) -> list[Figure]:
    return [figure for figure in figures(search.dimension) if figure.way == search.way]


def _largest(search: Search) -> str:
    if search.largest is None and not search.ended:
        return "" if search.most is None else f"≥ {search.most:,}"  # it was cut short
    if search.largest is None:
        return "none"
    return f"{'≥ ' * search.capped}{search.largest:,}"


def _outcome(trial: Trial) -> str:
    if trial.fits:
        return "finished"
    return "crashed" if trial.crashed else "failed"


def _reason(search: Search) -> str:
    if search.best is not None and not search.best.finite:
        return "its loss is not finite"
    return (search.crash and short(f"crashed: {search.crash}")) or short(search.refusal)


def notes(record: Record) -> Iterator[str]:
    """How many trials were made, and what speaks against a result."""
    trials = [trial for search in record.of(Search) for trial in search.trials]
    yield f"{len(trials)} trials, {sum(trial.fits for trial in trials)} of which had the memory."
    if outside := [trial.outside_bytes for trial in trials if trial.outside_bytes]:
        yield f"In use of the GPU beside torch's allocator: at most {max(outside) / MIB:,.0f} MiB."
    for search in record.of(Search):
        if (one := proof(record, search)) is not None and one.fits:
            yield f"{search.dimension}: plain finished at {search.largest:,}, the largest of {search.way}, too."


def panels(record: Record) -> list[Panel]:
    """The largest number over the plain one's, a panel for each dimension, a bar for each way."""
    found = []
    for dimension in record.values(Search, "dimension"):
        bars = []
        for search in record.of(Search, dimension=dimension):
            ratio = times_plain(record, search)
            if search.way == PLAIN or ratio is None:
                continue
            finite = search.best is None or search.best.finite
            words = f"{'≥ ' * search.capped}{ratio:.1f}{'' if finite else ', loss not finite'}"
            mark = next((figure.ratio for figure in _published(search)), None)
            bars.append(Bar(search.way, ratio, BLUE if ALL_WAYS[search.way].ours else ORANGE, mark=mark, words=words))
        if bars:
            first = record.of(Search, dimension=dimension)[0]
            title = f"{first.title}, within {size_name(first.memory_limit)}"
            found.append(Panel(title, "largest over plain's", bars=bars, line=1))
    return found


CAPTION = "Blue: ours; orange: torch's; red line: published, on a GPU of 16 GiB."
TITLE = "The largest that trains within a given memory"
REPORT = Report(TITLE, tables, notes, panels=panels, caption=lambda record: CAPTION)
