"""The tables and the chart of ``python -m bench search``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from bench.errors import BenchError
from bench.results.charts import BLUE, GREY, INK, ORANGE, VERMILION, beside, footer, lined, titled
from bench.results.record import Record
from bench.results.report import Report
from bench.results.tables import dim, number, short, table
from bench.suites.search.entries import Search, Trial, proof, relative_throughput, times_plain
from bench.units import MIB, size_name
from bench.ways.decoders import ALL_WAYS, label
from bench.ways.general import PLAIN


@dataclass(frozen=True)
class PublishedFigure:
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
    way: str = ""

    @property
    def ratio(self) -> float:
        """Over full precision's."""
        return self.value / self.plain

    def __str__(self) -> str:
        return f"{self.system}: {self.plain:,} -> {self.value:,}"


_CHECKPOINT = "each block (torch)"


def _of(plain: int, *figures: tuple[str, int] | tuple[str, int, str]) -> tuple[PublishedFigure, ...]:
    return tuple(PublishedFigure(system, value, plain, *way) for system, value, *way in figures)


def _berts(
    plain: int, least: int, swap: int, both: int, attention: int, checkpoint: int
) -> tuple[PublishedFigure, ...]:
    return _of(
        plain,
        ("GACT, 4 bits", least, "L2"),  # adaptive bits there, fixed ones in the image models
        ("GACT, 4 bits, swap", swap, "L4bit-swap"),
        ("GACT, 4 bits, swap, checkpoints", both),
        ("the same, attention in chunks", attention),
        ("checkpoints alone", checkpoint, _CHECKPOINT),
    )


def _sizes(plain: int, four: int, two: int) -> tuple[PublishedFigure, ...]:
    return _of(plain, ("GACT, 4 bits", four, "L2"), ("GACT, 2 bits", two, "L2.2"))


PUBLISHED: Mapping[str, tuple[PublishedFigure, ...]] = MappingProxyType(
    {
        "resnet50-batch": _of(
            160,
            ("GACT, 4 bits", 448, "L1"),
            ("GACT, 4 bits, swap", 672, "L4bit-swap"),
            ("ActNN L1", 256),
            ("ActNN L2", 416),
            ("ActNN L3", 608, "Q-layers"),
            ("ActNN L4", 768),
            ("ActNN L5", 1056),
        ),
        "resnet152-batch": _of(
            64,
            ("GACT, 4 bits", 384, "L1"),
            ("GACT, 4 bits, swap", 640, "L4bit-swap"),
            ("ActNN L1", 128),
            ("ActNN L2", 352),
            ("ActNN L3", 480, "Q-layers"),
            ("ActNN L4", 736),
        ),
        "resnet-depth": _sizes(160, 368, 528),
        "resnet-width": _sizes(88, 284, 316),
        "resnet-resolution": _sizes(232, 492, 576),
        "swin-tiny-batch": _of(112, ("GACT, 4 bits", 384, "L1"), ("GACT, 4 bits, swap", 632, "L4bit-swap")),
        "swin-small-batch": _of(64, ("GACT, 4 bits", 336, "L1")),
        "bert-base-batch": _berts(104, 456, 992, 1152, 1344, 744),
        "bert-large-batch": _berts(24, 128, 352, 560, 592, 308),
        "bert-layers": _sizes(32, 56, 60),
        "bert-hidden": _sizes(1280, 1920, 1936),
        "gcn-layers": _sizes(24, 152, 240),
        "gcn-hidden": _sizes(2464, 3948, 4244),
    }
)
"""By the name of the search; searches that the originals did not make are not here."""


def published(dimension: str, way: str) -> Iterator[PublishedFigure]:
    """The figures of a dimension that belong beside a way; those of no way with ``""``."""
    return (figure for figure in PUBLISHED.get(dimension, ()) if figure.way == way)


_COLUMNS = 3


def draw(record: Record) -> Figure:
    """A panel for each dimension.

    Raises:
        BenchError: no way but the plain one has a largest number.
    """
    rows = {dimension: _compared(record, dimension) for dimension in record.values(Search, "dimension")}
    rows = {dimension: searches for dimension, searches in rows.items() if searches}
    if not rows:
        raise BenchError("there is nothing to draw: no way was compared with the plain one; the text above says why")
    down, across = -(-len(rows) // _COLUMNS), min(len(rows), _COLUMNS)
    height = 0.8 + down * (1.1 + 0.27 * max(map(len, rows.values())))
    figure, grid = plt.subplots(down, across, figsize=(0.4 + 5.2 * across, height), squeeze=False)
    for axes in grid.flat[len(rows) :]:
        axes.axis("off")
    for axes, searches in zip(grid.flat, rows.values(), strict=False):
        _draw_dimension(axes, record, searches)
    text = (
        "The largest that trains within the memory, over plain's; blue: ours, orange: torch's; red line: published, "
        "on a GPU of 16 GiB."
    )
    footer(figure, text, record.machine)
    figure.tight_layout(rect=(0, 0.42 / height, 1, 1))
    return figure


def _compared(record: Record, dimension: str) -> list[Search]:
    """The searches of a dimension that have a largest number, where the plain one has."""
    searches = [search for search in record.of(Search, dimension=dimension) if search.way != PLAIN]
    return [search for search in searches if times_plain(record, search) is not None]


def _draw_dimension(axes: Axes, record: Record, searches: list[Search]) -> None:
    for place, search in enumerate(searches):
        ratio = times_plain(record, search) or 0.0
        finite = search.best is None or search.best.finite
        colour = BLUE if ALL_WAYS[search.way].ours else ORANGE
        axes.barh(place, ratio, color=colour if finite else "white", edgecolor=colour, height=0.62)
        label = f"{'≥ ' * search.capped}{ratio:.1f}{'' if finite else ', loss not finite'}"
        beside(axes, label, (ratio, place), (3, 0), va="center", fontsize=7, color=INK)
        for figure in published(search.dimension, search.way):
            axes.plot([figure.ratio] * 2, [place - 0.42, place + 0.42], color=VERMILION, linewidth=2)
    axes.axvline(1, color=GREY, linewidth=1)
    axes.set_yticks(range(len(searches)), [search.way for search in searches], fontsize=8)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    lined(axes, "x")
    axes.set_xlim(left=0)
    axes.margins(x=0.12)
    titled(axes, f"{searches[0].title}, within {size_name(searches[0].memory_limit)}", 9)


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


def _published(search: Search) -> list[PublishedFigure]:
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
