"""The chart: the largest number over the plain one's, a panel for each dimension, a bar for each way."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.errors import BenchError
from bench.results.charts import BLUE, GREY, INK, ORANGE, VERMILION, beside, footer, lined, titled
from bench.results.record import Record
from bench.suites.search.published import published
from bench.suites.search.results import Search, times_plain
from bench.units import size_name
from bench.ways.decoders import ALL_WAYS
from bench.ways.general import PLAIN

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
