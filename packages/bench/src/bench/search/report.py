"""Results of ``python -m bench search`` as text: measured beside published."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.layout import columns, header, short
from bench.search.published import PUBLISHED, Figure, published
from bench.search.results import Search, SearchResults, Trial
from bench.systems.ways import PLAIN, label
from bench.units import MIB, size_name


def render(results: SearchResults) -> RenderableType:
    """Header, a table for each dimension, and what the columns mean."""
    top = header("The largest that trains within a given memory", results.machine, results.seconds)
    tables = [_table(results, dimension) for dimension in results.dimensions]
    return Group(top, *tables, Text("\n".join(_notes(results)), style="dim"))


def times_plain(results: SearchResults, search: Search) -> float | None:
    """A way's largest number over the plain one's; ``None`` where one is not known."""
    plain = results.search(search.dimension, PLAIN)
    return search.largest / plain.largest if plain and plain.largest and search.largest else None


def relative_throughput(results: SearchResults, search: Search) -> float | None:
    """Items per second at a way's largest number, over the plain way's at its own; ``None`` where one is not known."""
    plain = results.search(search.dimension, PLAIN)
    reference = plain.best if plain else None
    if search.best is None or reference is None or not reference.throughput or not search.best.throughput:
        return None
    return search.best.throughput / reference.throughput


def proof(results: SearchResults, search: Search) -> Trial | None:
    """The plain trial at a way's largest number, if that is more than the plain way's."""
    plain = results.search(search.dimension, PLAIN)
    if plain is None or not search.largest or search.largest <= (plain.largest or 0):
        return None
    return plain.trial(search.largest)


def _table(results: SearchResults, dimension: str) -> Table:
    searches = [search for search in results.searches if search.dimension == dimension]
    table = columns(
        f"{searches[0].title}\nwithin {size_name(searches[0].memory_limit)}",
        "largest",
        "times plain's\nmeasured",
        "times plain's\npublished",
        f"{searches[0].items}/s",
        "over\nplain's",
        "plain\nthere",
        "",
    )
    beside = {figure for search in searches for figure in published(dimension, search.way)}
    for search in searches:
        _add(table, results, search)
    for figure in PUBLISHED.get(dimension, ()):
        if figure not in beside:
            table.add_row("", "", "", f"{figure.ratio:.2f}", "", "", "", _dim([figure]))
    return table


def _add(table: Table, results: SearchResults, search: Search) -> None:
    best, ratio, speed = search.best, times_plain(results, search), relative_throughput(results, search)
    figures = list(published(search.dimension, search.way))
    there = proof(results, search)
    table.add_row(
        label(search.way),
        _largest(search),
        "" if ratio is None else f"{'≥ ' * search.capped}{ratio:.2f}",
        ", ".join(f"{figure.ratio:.2f}" for figure in figures),
        "" if best is None or best.throughput is None else f"{best.throughput:,.1f}",
        "" if speed is None else f"{speed:.2f}",
        "" if there is None else _outcome(there),
        Text(reason, style="dim") if (reason := _reason(search)) else _dim(figures),
    )


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
    return (search.failure and short(f"crashed: {search.failure}")) or short(search.does_not_apply)


def _dim(figures: list[Figure]) -> Text:
    return Text("; ".join(map(str, figures)), style="dim")


def _outside(results: SearchResults) -> str:
    """What was in use of the GPU beside the allocator."""
    found = [trial.outside_bytes for search in results.searches for trial in search.trials if trial.outside_bytes]
    return f"at most {max(found) / MIB:,.0f} MiB, other processes' included" if found else "it was not measured"


def _notes(results: SearchResults) -> Iterator[str]:
    for reason in results.skipped:
        yield f"Left out: {reason}."
    counted = (
        "what torch's allocator has reserved of the GPU, cuDNN's and cuBLAS's workspaces included; not the context and "
        f"what libraries take by themselves ({_outside(results)})"
        if results.device == "cuda"
        else "all writable memory of the process that it had not before the model was made, which the kernel refuses "
        "beyond the limit"
    )
    within = max((search.resolution for search in results.searches), default=0.0)
    exact = f"to {100 * within:g} %" if within else "exactly"
    yield (
        f"largest: {exact}, that trains within that memory: weights, gradients, the optimizer's "
        f"state, activations and what kernels take; {counted}. ≥: no larger one was tried, or the "
        "search was cut short. "
        "/s: in the median step at that number, optimizer's step included; beside it, over plain's at plain's largest. "
        "plain there: what came of a plain trial at the way's largest; failed: out of memory. * not ours. A loss that "
        "is not finite: the memory is enough, but the network does not train."
    )
    yield (
        "published: over full precision at 16 GiB of a GPU, for the originals' own sizes of the models; measured here: "
        f"{'the same sizes' if results.device == 'cuda' else 'narrower ones'}."
    )
    if results.device == "cuda":
        yield (
            "Matrices are multiplied in TF32. cudnn.benchmark is off. Where an algorithm's workspace does not fit, "
            "torch tries the next algorithm: near the largest number a step may be slower, and a trial fails of a "
            "workspace only where none is small enough."
        )
    trials = [trial for search in results.searches for trial in search.trials]
    yield f"{len(trials)} trials, {sum(trial.fits for trial in trials)} of which had the memory."
    wrong = [search for search in results.searches if (one := proof(results, search)) is not None and one.fits]
    for search in wrong:
        yield f"{search.dimension}: plain finished at {search.largest:,}, the largest of {search.way}, too."
