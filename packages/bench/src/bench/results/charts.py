"""What the charts share: colours, type, and the files that they can be written to."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure

from bench.errors import BenchError
from bench.results.machine import Machine
from integrations._utils.whole_files import written_whole

# Okabe and Ito's colours, which keep apart for every kind of colour vision (https://jfly.uni-koeln.de/color/).
BLUE, GREEN, VERMILION, PURPLE, ORANGE = "#0072B2", "#009E73", "#D55E00", "#CC79A7", "#E69F00"
GREY, INK, FAINT, GRID = "#C9CCD1", "#22262B", "#7A828C", "#E8EAED"

STYLE: dict[Any, Any] = {  # matplotlib types the keys one by one
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "xtick.color": FAINT,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
}


def require_drawable(path: Path) -> None:
    """Raises ``BenchError`` if the file's name asks for a type that cannot be drawn."""
    known = FigureCanvasBase.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in known:
        raise BenchError(f"a chart's name must end in .png, .svg or .pdf, got {path}")


def write(figure: Figure, path: Path) -> None:
    """Writes and closes a figure.

    Raises:
        BenchError: the file cannot be written.
    """
    try:
        with written_whole(path) as part:
            figure.savefig(part, dpi=200, facecolor="white")
    except OSError as error:
        raise BenchError(f"the chart cannot be written to {path} ({error.strerror}); name another file") from error
    finally:
        plt.close(figure)


def footer(figure: Figure, text: str, machine: Machine) -> None:
    """Says below a figure how it was measured, on what and when."""
    commit = f"commit {machine.commit[:10] or 'unknown'}{' with changes' if machine.dirty else ''}"
    versions = f"torch {machine.versions['torch']}" if "torch" in machine.versions else ""
    threads = f"{machine.threads} thread{'s' * (machine.threads > 1)}"
    where = ", ".join(filter(None, (machine.processor, threads, versions, machine.date, commit)))
    figure.text(0.01, 0.015, f"{text}\n{where}.", color=FAINT, fontsize=8)


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
