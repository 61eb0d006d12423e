"""What charts have in common: axes, titles, points with a word beside them."""

from __future__ import annotations

from typing import Any, Literal

from matplotlib.axes import Axes

from bench.style import GRID


def lined(axes: Axes, axis: Literal["x", "y", "both"] = "both") -> None:
    """Faint lines behind what is drawn."""
    axes.grid(axis=axis, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def titled(axes: Axes, title: str, size: float = 11) -> None:
    """A title above the left end."""
    axes.set_title(title, loc="left", fontsize=size, weight="bold")


def beside(axes: Axes, text: str, at: tuple[float, float], by: tuple[float, float], **options: Any) -> None:
    """A text so many points beside a place."""
    axes.annotate(text, at, xytext=by, textcoords="offset points", **options)
