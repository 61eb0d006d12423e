"""What the charts share: colours, axes, and how they are written to files. It needs matplotlib."""

from __future__ import annotations

from os import PathLike
from typing import Any

from integrations._utils.whole_files import written_whole

# Okabe and Ito's colours, which every kind of colour vision can tell apart (https://jfly.uni-koeln.de/color/).
BLUE, VERMILION, INK, FAINT, GRID = "#0072B2", "#D55E00", "#22262B", "#7A828C", "#E8EAED"
GREY = "#C9CCD1"  # for what others are compared with


def new_figure(size: tuple[float, float]) -> Any:
    """A figure of this many inches.

    Raises:
        ImportError: matplotlib is not there.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("a chart needs matplotlib: pip install actcore-integrations[plot]") from error
    return Figure(figsize=size, layout="constrained")


def plain_axes(axes: Any) -> None:
    """Removes what carries no information."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(color=FAINT)


def write_figure(figure: Any, path: str | PathLike[str]) -> None:
    """Writes a figure; the path's ending names the type: ``.png``, ``.svg``, ``.pdf``."""
    with written_whole(path) as part:
        figure.savefig(part, dpi=160, facecolor="white")
