"""``plot_variance``: the variance of each layer's gradient, predicted and measured."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from integrations._common.whole_files import written_whole
from integrations.qmodules.variance import GradientVariance

# Okabe and Ito's colours, which keep apart for every kind of colour vision (https://jfly.uni-koeln.de/color/).
_BLUE, _VERMILION, _FAINT = "#0072B2", "#D55E00", "#7A828C"


def plot_variance(result: GradientVariance, path: str | PathLike[str]) -> None:
    """Draws each layer's variance, predicted and measured, in units of its squared gradient, and its bits.

    Args:
        result: of ``get_var``.
        path: the file to write; its ending names the type: ``.png``, ``.svg``, ``.pdf``.

    Raises:
        TypeError: ``result`` is not of ``get_var``.
        ValueError: the path has no ending, or one that matplotlib does not write.
        ImportError: matplotlib is not there.
    """
    if not isinstance(result, GradientVariance):
        raise TypeError(f"result must be what qmodules.get_var returns, got {type(result).__name__}")
    if not Path(path).suffix:  # where matplotlib would choose one, and another file than was named
        raise ValueError(f"path must have an ending that names the type, .png, .svg or .pdf, got {str(path)!r}")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plot_variance needs matplotlib: pip install actcore-integrations[plot]") from error
    layers = [layer for layer in result.layers if layer.gradient and layer.measured and layer.predicted]
    places = range(len(layers))
    figure = Figure(figsize=(max(6.0, 0.28 * len(layers) + 2.0), 4.8), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    for values, colour, marker, label in (
        ([layer.predicted / layer.gradient for layer in layers], _BLUE, "o", "predicted"),
        ([layer.measured / layer.gradient for layer in layers], _VERMILION, "x", "measured"),
    ):
        upper.plot(places, values, marker, color=colour, label=label, markersize=5)
    upper.set_yscale("log")
    upper.set_ylabel("variance / squared gradient")
    upper.legend(frameon=False)
    whole = result.variance / result.gradient if result.gradient else 0.0
    upper.set_title(
        f"Rounding's share in the gradient: {whole:.2g} of its squared norm in all", loc="left", fontsize=10
    )
    lower.bar(places, [layer.bits for layer in layers], color=_FAINT, width=0.7)
    lower.set_ylabel("bits")
    upper.set_xlim(-1, len(layers))
    lower.set_xticks(places, [layer.name or layer.kind for layer in layers], rotation=90, fontsize=7)
    for axes in (upper, lower):
        _plain(axes)
    with written_whole(path) as part:
        figure.savefig(part, dpi=200)


def _plain(axes: Any) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(color=_FAINT)
