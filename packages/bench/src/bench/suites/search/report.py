"""What is printed of ``python -m bench search``: measured beside published."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from bench.results.record import Record
from bench.results.report import Report
from bench.results.tables import dim, number, short, table
from bench.suites.search.chart import draw
from bench.suites.search.published import PUBLISHED, Figure, published
from bench.suites.search.results import Search, Trial, proof, relative_throughput, times_plain
from bench.units import MIB, size_name
from bench.ways.decoders import label


def tables(record: Record) -> Iterator[Table]:
    """One for each dimension."""
    for dimension in record.values(Search, "dimension"):
        yield _table(record, record.of(Search, dimension=dimension))


def _table(record: Record, searches: Sequence[Search]) -> Table:
    first = searches[0]
    beside = {figure for search in searches for figure in published(search.dimension, search.way)}

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
    for figure in PUBLISHED.get(first.dimension, ()):
        if figure not in beside:
            made.add_row("", "", "", f"{figure.ratio:.2f}", "", "", "", dim(str(figure)))
    return made


def _published(search: Search) -> list[Figure]:
    return list(published(search.dimension, search.way))


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


def _outside(record: Record) -> str:
    """What was in use of the GPU beside the allocator."""
    found = [trial.outside_bytes for search in record.of(Search) for trial in search.trials if trial.outside_bytes]
    return f"at most {max(found) / MIB:,.0f} MiB, other processes' included" if found else "it was not measured"


def notes(record: Record) -> Iterator[str]:
    """What the columns mean."""
    counted = (
        "what torch's allocator has reserved of the GPU, cuDNN's and cuBLAS's workspaces included; not the context and "
        f"what libraries take by themselves ({_outside(record)})"
        if record.settings["device"] == "cuda"
        else "all writable memory of the process that it had not before the model was made, which the kernel refuses "
        "beyond the limit"
    )
    within = max((search.resolution for search in record.of(Search)), default=0.0)
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
        f"{'the same sizes' if record.settings['device'] == 'cuda' else 'narrower ones'}."
    )
    if record.settings["device"] == "cuda":
        yield (
            "Matrices are multiplied in TF32. cudnn.benchmark is off. Where an algorithm's workspace does not fit, "
            "torch tries the next algorithm: near the largest number a step may be slower, and a trial fails of a "
            "workspace only where none is small enough."
        )
    trials = [trial for search in record.of(Search) for trial in search.trials]
    yield f"{len(trials)} trials, {sum(trial.fits for trial in trials)} of which had the memory."
    wrong = [search for search in record.of(Search) if (one := proof(record, search)) is not None and one.fits]
    for search in wrong:
        yield f"{search.dimension}: plain finished at {search.largest:,}, the largest of {search.way}, too."


REPORT = Report("The largest that trains within a given memory", tables, notes, draw=draw)
