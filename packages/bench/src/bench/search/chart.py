"""The chart: the largest number over the plain one's, a panel for each dimension, a bar for each way."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.errors import BenchError
from bench.search.published import published
from bench.search.report import times_plain
from bench.search.results import Search, SearchResults
from bench.style import BLUE, GREY, GRID, INK, ORANGE, STYLE, VERMILION, footer, require_drawable, write
from bench.systems.ways import PLAIN, WAYS
from bench.units import size_name

_COLUMNS = 3


def save_chart(results: SearchResults, path: Path) -> None:
    """Draws results into a file of the type that its name says, such as PNG or SVG.

    Raises:
        BenchError: no way but the plain one has a largest number, the type is unknown, or the file cannot be written.
    """
    require_drawable(path)
    rows = {dimension: _compared(results, dimension) for dimension in results.dimensions}
    rows = {dimension: searches for dimension, searches in rows.items() if searches}
    if not rows:
        raise BenchError("there is nothing to draw: no way was compared with the plain one; the text above says why")
    with mpl.rc_context(STYLE):
        write(_draw(results, rows), path)


def _compared(results: SearchResults, dimension: str) -> list[Search]:
    """The searches of a dimension that have a largest number, where the plain one has."""
    return [
        search
        for search in results.searches
        if search.dimension == dimension and search.way != PLAIN and times_plain(results, search) is not None
    ]


def _draw(results: SearchResults, rows: dict[str, list[Search]]) -> Figure:
    down, across = -(-len(rows) // _COLUMNS), min(len(rows), _COLUMNS)
    height = 0.8 + down * (1.1 + 0.27 * max(map(len, rows.values())))
    figure, grid = plt.subplots(down, across, figsize=(0.4 + 5.2 * across, height), squeeze=False)
    for axes in grid.flat[len(rows) :]:
        axes.axis("off")
    for axes, searches in zip(grid.flat, rows.values(), strict=False):
        _draw_dimension(axes, results, searches)
    text = (
        "The largest that trains within the memory, over plain's; blue: ours, orange: torch's; red line: published, "
        "on a GPU of 16 GiB."
    )
    footer(figure, text, results.machine)
    figure.tight_layout(rect=(0, 0.42 / height, 1, 1))
    return figure


def _draw_dimension(axes: Axes, results: SearchResults, searches: list[Search]) -> None:
    for place, search in enumerate(searches):
        ratio = times_plain(results, search) or 0.0
        finite = search.best is None or search.best.finite
        colour = BLUE if WAYS[search.way].ours else ORANGE
        axes.barh(place, ratio, color=colour if finite else "white", edgecolor=colour, height=0.62)
        label = f"{'≥ ' * search.capped}{ratio:.1f}{'' if finite else ', loss not finite'}"
        axes.annotate(label, (ratio, place), (3, 0), textcoords="offset points", va="center", fontsize=7, color=INK)
        for figure in published(search.dimension, search.way):
            axes.plot([figure.ratio] * 2, [place - 0.42, place + 0.42], color=VERMILION, linewidth=2)
    axes.axvline(1, color=GREY, linewidth=1)
    axes.set_yticks(range(len(searches)), [search.way for search in searches], fontsize=8)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlim(left=0)
    axes.margins(x=0.12)
    title = f"{searches[0].title}, within {size_name(searches[0].memory_limit)}"
    axes.set_title(title, loc="left", fontsize=9, weight="bold")
