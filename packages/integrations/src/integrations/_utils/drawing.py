"""What all charts share: colors, axes, and how figures are written to files and embedded in pages. It needs
matplotlib."""

from __future__ import annotations

from io import StringIO
from os import PathLike
from typing import Any

from integrations._utils.whole_files import written_whole

# Okabe and Ito's colors, which every kind of color vision can tell apart (https://jfly.uni-koeln.de/color/).
BLUE, VERMILION, INK, FAINT, GRID = "#0072B2", "#D55E00", "#22262B", "#7A828C", "#E8EAED"
GREY = "#C9CCD1"  # for what others are compared with

# The variables of a page's style by color, so that an embedded figure follows a dark page.
_VARIABLES = {BLUE: "after", VERMILION: "device", INK: "ink", FAINT: "faint", GRID: "line", GREY: "before"}
_BLACK = "#000000"  # matplotlib's color of axes
_NO_METADATA = {"Creator": None, "Date": None, "Format": None, "Type": None}
# What SVG declares in a file, and HTML knows.
_NAMESPACES = (' xmlns="http://www.w3.org/2000/svg"', ' xmlns:xlink="http://www.w3.org/1999/xlink"')


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


def literal(name: str) -> str:
    """Return a name as matplotlib draws it unchanged; dollar signs would begin a formula."""
    return name.replace("$", r"\$")


def write_figure(figure: Any, path: str | PathLike[str]) -> None:
    """Writes a figure; the path's ending names the type: ``.png``, ``.svg``, ``.pdf``."""
    with written_whole(path) as part:
        figure.savefig(part, dpi=160, facecolor="white")


def embed_figure(figure: Any) -> str:
    """Return a figure as an ``<svg>`` element for a page of HTML. Text stays text, the background is transparent, and
    colors are variables of the page's style, such as ``var(--ink)``. The same figure is the same text."""
    import matplotlib as mpl

    written = StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "integrations"}):
        figure.savefig(written, format="svg", metadata=_NO_METADATA, transparent=True)
    text = written.getvalue()
    text = text[text.index("<svg") :]
    for declared in _NAMESPACES:
        text = text.replace(declared, "", 1)
    for color, variable in {**_VARIABLES, _BLACK: "ink"}.items():
        text = text.replace(color.lower(), f"var(--{variable})")
    return text
