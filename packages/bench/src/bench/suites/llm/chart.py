"""The chart: what a step takes beside gradients against its tokens, a panel for each kind of training."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from bench.errors import BenchError
from bench.models.decoders import SHAPES
from bench.results.charts import BLUE, GREEN, INK, ORANGE, PURPLE, VERMILION, footer, lined, titled
from bench.results.record import Record
from bench.suites.llm.results import Trained
from bench.suites.llm.subjects import SUBJECTS
from bench.units import MIB
from bench.ways.decoders import CHECKPOINTS, CHUNKED, beside, planned_beside
from bench.ways.general import PLAIN

COLOURS = {
    PLAIN: INK,
    CHECKPOINTS: VERMILION,
    CHUNKED: ORANGE,
    beside("lean"): BLUE,
    planned_beside(0.0): PURPLE,
    beside(CHECKPOINTS): GREEN,
}
"""Of the ways that are drawn."""

_OF = "-tokens"  # how subjects are called that differ from another in tokens alone
_BASE = "-32k"


def draw(record: Record) -> Figure:
    """A panel for each.

    Raises:
        BenchError: no model was measured with several numbers of tokens.
    """
    panels = {shape: lines for shape in SHAPES if (lines := _lines(record, shape))}
    if not panels:
        raise BenchError("there is nothing to draw: no model was measured with several numbers of tokens; see above")
    figure, row = plt.subplots(1, len(panels), figsize=(0.8 + 5.2 * len(panels), 5.2), squeeze=False)
    for axes, (shape, lines) in zip(row[0], panels.items(), strict=True):
        _draw_panel(axes, shape, lines)
    row[0][0].set_ylabel("MiB beside gradients")
    drawn = {way: line for axes in row[0] for line, way in zip(*axes.get_legend_handles_labels(), strict=True)}
    below = (0.5, 0.09)
    figure.legend(
        [*drawn.values()], [*drawn], loc="lower center", bbox_to_anchor=below, ncols=3, fontsize=7, frameon=False
    )
    footer(figure, "The peak of a step beside its gradients, by the tokens of a forward.", record.machine)
    figure.tight_layout(rect=(0, 0.17, 1, 1))
    return figure


def _lines(record: Record, shape: str) -> dict[str, list[Trained]]:
    """Of a shape, those of each way that were measured with several numbers of tokens."""
    names = [name for name, one in SUBJECTS.items() if one.shape == shape and name.endswith((_OF, shape + _BASE))]
    names.sort(key=lambda name: SUBJECTS[name].tokens)
    lines = {way: [cell for name in names for cell in record.of(Trained, subject=name, way=way)] for way in COLOURS}
    measured = {way: [cell for cell in cells if cell.beside] for way, cells in lines.items()}
    return {way: cells for way, cells in measured.items() if len(cells) > 1}


def _draw_panel(axes: Axes, shape: str, lines: dict[str, list[Trained]]) -> None:
    for way, cells in lines.items():
        tokens = [SUBJECTS[cell.subject].tokens for cell in cells]
        axes.plot(
            tokens, [(cell.beside or 0) / MIB for cell in cells], "o-", color=COLOURS[way], label=way, markersize=4
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = sorted({SUBJECTS[cell.subject].tokens for cells in lines.values() for cell in cells})
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(ticks, [f"{count:,}" for count in ticks])
    axes.set_xlabel("tokens")
    lined(axes)
    titled(axes, SHAPES[shape].what, 9)
