"""The chart of a report: memory over one step, and by module. It needs matplotlib."""

from __future__ import annotations

from os import PathLike
from typing import Any

from integrations._utils.drawing import BLUE, FAINT, GREY, GRID, INK, VERMILION, new_figure, plain_axes, write_figure
from integrations.report.content import Content
from integrations.report.curve import Curve, make_curve
from integrations.report.tree import Part, cut, make_tree
from integrations.report.words import choose_unit, format_bytes

PARTS = 16  # the most parts of the model
EXPLANATION = (
    "Left: what is kept for backward after each tensor that forward saves and backward lets go; not what operators "
    "hold for a moment, and no gradients."
)


def plot_report(report: Content, path: str | PathLike[str]) -> None:
    """See ``Report.plot``."""
    curve = make_curve(report.rows, PARTS, report.gradient_bytes)
    if curve is None:
        raise ValueError("there is nothing to draw: no tensor was saved that autograd alone keeps alive")
    figure = new_figure((11.5, 5.0))
    left, right = figure.subplots(1, 2, width_ratios=(1.35, 1))
    size, unit = choose_unit(report.original_bytes)
    _draw_step(left, curve, size, unit)
    _draw_modules(right, cut(make_tree(report.rows), PARTS), size, unit)
    name = f"{report.model} at {report.level}" if report.model else f"Level {report.level}"
    before, after = format_bytes(report.original_bytes), format_bytes(report.stored_bytes)
    title = f"{name}: {before} of saved tensors in {after}, {report.ratio:.1f} times smaller"
    figure.suptitle(title, x=0.012, ha="left", fontsize=13, fontweight="bold", color=INK)
    figure.supxlabel(f"{EXPLANATION} {report.note}".strip(), x=0.012, ha="left", fontsize=7.5, color=FAINT, wrap=True)
    write_figure(figure, path)


def _draw_step(axes: Any, curve: Curve, size: int, unit: str) -> None:
    for number, band in enumerate(curve.bands):
        if number % 2 == 0:
            axes.axvspan(band.start, band.end, color=GRID, alpha=0.55, linewidth=0, zorder=0)
        if band.end - band.start > 0.04 * curve.turn:
            middle = (band.start + band.end) / 2
            place = {"xy": (middle, 0.985), "xycoords": ("data", "axes fraction"), "ha": "center", "va": "top"}
            axes.annotate(band.name, **place, fontsize=7.5, color=FAINT, rotation=90)
    x = range(len(curve.original))
    for values, colour, label in _series(curve):
        heights = [value / size for value in values]
        axes.fill_between(x, heights, step="post", color=colour, linewidth=0, alpha=0.95, label=label, zorder=2)
    axes.axvline(curve.turn, color=INK, linewidth=0.8, linestyle=(0, (4, 3)), zorder=3)
    for values, words in ((curve.original, "as autograd keeps it"), (curve.stored, "compressed")):
        axes.annotate(
            f"{format_bytes(max(values))} {words}",
            (curve.turn, max(values) / size),
            xytext=(7, 4),
            textcoords="offset points",
            fontsize=9.5,
            color=INK,
            zorder=4,
        )
    axes.set_xlim(0, len(curve.original) - 1)
    axes.set_ylim(0, 1.28 * max(curve.original) / size)
    axes.set_xticks([curve.turn / 2, 1.5 * curve.turn], ["forward  →", "backward  →"])
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel(f"kept for backward, {unit}")
    axes.set_title("Over one step", loc="left", fontsize=11, color=INK)
    plain_axes(axes)
    axes.grid(visible=False, axis="x")


def _series(curve: Curve) -> list[tuple[list[int], str, str]]:
    found = [(curve.original, GREY, "before"), (curve.stored, BLUE, "compressed")]
    if max(curve.device) < max(curve.stored):
        found = [found[0], (curve.stored, BLUE, "compressed"), (curve.device, VERMILION, "of that, on the device")]
    return found


def _draw_modules(axes: Any, parts: list[Part], size: int, unit: str) -> None:
    for place, part in enumerate(parts):
        before, after = part.original_bytes, part.stored_bytes
        axes.barh(place, before / size, height=0.66, color=GREY, zorder=2)
        axes.barh(place, after / size, height=0.66, color=BLUE, zorder=2)
        ratio = f"{part.smaller}×" if after and before else part.smaller
        offset = {"xytext": (4, 0), "textcoords": "offset points"}
        axes.annotate(ratio, (before / size, place), **offset, va="center", fontsize=8.5, color=INK)
    axes.set_yticks(range(len(parts)), [part.path or part.name for part in parts], fontsize=8.5)
    axes.set_ylim(len(parts) - 0.4, -0.6)
    room = 1.14 if all(part.stored_bytes for part in parts) else 1.3  # the word "recomputed" is longer than a number
    axes.set_xlim(0, room * max(part.original_bytes for part in parts) / size)
    axes.set_xlabel(unit)
    axes.set_title("By module: before (grey) and compressed", loc="left", fontsize=11, color=INK)
    plain_axes(axes)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
