"""The chart of a report: memory over one step, and by module. It needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

from integrations._utils.drawing import (
    BLUE,
    FAINT,
    GREY,
    GRID,
    INK,
    VERMILION,
    literal,
    new_figure,
    plain_axes,
    write_figure,
)
from integrations.report.content import Content
from integrations.report.row import Row
from integrations.report.timeline import make_bands, make_timeline
from integrations.report.tree import Part, cut, make_tree
from integrations.report.words import choose_unit, format_bytes

PARTS = 16  # the most parts of the model
EXPLANATION = (
    "Left: memory kept for backward, after each tensor that the forward saves or the backward frees, without "
    "temporary tensors of operators and without gradients."
)


def plot_report(report: Content, path: str | PathLike[str]) -> None:
    """See ``Report.plot``."""
    figure = draw_report(report)
    if figure is None:
        raise ValueError("there is nothing to draw: no tensor was saved that autograd alone keeps alive")
    name = literal(f"{report.model} at {report.level}" if report.model else f"Level {report.level}")
    before, after = format_bytes(report.original_bytes), format_bytes(report.stored_bytes)
    title = f"{name}: {before} of saved tensors in {after}, {report.ratio:.1f} times smaller"
    figure.suptitle(title, x=0.012, ha="left", fontsize=13, fontweight="bold", color=INK)
    note = literal(f"{EXPLANATION} {report.note}".strip())
    figure.supxlabel(note, x=0.012, ha="left", fontsize=7.5, color=FAINT, wrap=True)
    write_figure(figure, path)


def draw_report(report: Content) -> Any:
    """Draw both charts side by side, without a title: a figure of matplotlib, or ``None`` if nothing was saved.

    Raises:
        ImportError: matplotlib is not there.
    """
    counted = [row for row in report.rows if not row.owner and (row.original_bytes or row.stored_bytes)]
    if not counted:
        return None
    figure = new_figure((11.5, 5.0))
    left, right = figure.subplots(1, 2, width_ratios=(1.35, 1))
    size, unit = choose_unit(report.original_bytes)
    _draw_step(left, counted, report.gradient_bytes, size, unit)
    _draw_modules(right, cut(make_tree(report.rows), PARTS), size, unit)
    return figure


def _draw_step(axes: Any, rows: Sequence[Row], gradient_bytes: int, size: int, unit: str) -> None:
    turn = len(rows)  # the last moment of the forward
    for number, band in enumerate(make_bands(rows, PARTS)):
        if number % 2 == 0:
            axes.axvspan(band.start, band.end, color=GRID, alpha=0.55, linewidth=0, zorder=0)
        if band.end - band.start > 0.04 * turn:
            middle = (band.start + band.end) / 2
            place = {"xy": (middle, 0.985), "xycoords": ("data", "axes fraction"), "ha": "center", "va": "top"}
            axes.annotate(literal(band.name), **place, fontsize=7.5, color=FAINT, rotation=90)
    moments = make_timeline(rows, gradient_bytes)
    original = [moment.original_bytes for moment in moments]
    stored = [moment.device_bytes + moment.host_bytes for moment in moments]
    device = [moment.device_bytes for moment in moments]
    offloaded = max(device) < max(stored)
    for values, color, label in (
        (original, GREY, "uncompressed"),
        (stored, BLUE, "compressed"),
        *([(device, VERMILION, "of that, on the device")] if offloaded else []),
    ):
        heights = [value / size for value in values]
        axes.fill_between(
            range(len(moments)), heights, step="post", color=color, linewidth=0, alpha=0.95, label=label, zorder=2
        )
    if offloaded:
        axes.legend(loc="upper right", frameon=False, fontsize=9)
    axes.axvline(turn, color=INK, linewidth=0.8, linestyle=(0, (4, 3)), zorder=3)
    for values, words in ((original, "uncompressed"), (stored, "compressed")):
        axes.annotate(
            f"{format_bytes(max(values))} {words}",
            (turn, max(values) / size),
            xytext=(7, 4),
            textcoords="offset points",
            fontsize=9.5,
            color=INK,
            zorder=4,
        )
    axes.set_xlim(0, len(moments) - 1)
    axes.set_ylim(0, 1.28 * max(original) / size or 1)
    axes.set_xticks([turn / 2, 1.5 * turn], ["forward  →", "backward  →"])
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel(f"kept for backward, {unit}")
    axes.set_title("Over one step", loc="left", fontsize=11, color=INK)
    plain_axes(axes)
    axes.grid(visible=False, axis="x")


def _draw_modules(axes: Any, parts: list[Part], size: int, unit: str) -> None:
    for place, part in enumerate(parts):
        before, after = part.original_bytes, part.stored_bytes
        axes.barh(place, before / size, height=0.66, color=GREY, zorder=2)
        axes.barh(place, after / size, height=0.66, color=BLUE, zorder=2)
        ratio = f"{part.smaller}×" if after and before else part.smaller
        words = f"{format_bytes(before)}, {ratio}" if ratio else format_bytes(before)
        offset = {"xytext": (4, 0), "textcoords": "offset points"}
        axes.annotate(words, (before / size, place), **offset, va="center", fontsize=8.5, color=INK)
    axes.set_yticks(range(len(parts)), [literal(part.path or part.name) for part in parts], fontsize=8.5)
    axes.set_ylim(len(parts) - 0.4, -0.6)
    room = 1.4 if all(part.stored_bytes for part in parts) else 1.55  # the word "recomputed" is longer than a number
    axes.set_xlim(0, room * max(part.original_bytes for part in parts) / size or 1)
    axes.set_xlabel(unit)
    axes.set_title("By module: before (grey) and compressed", loc="left", fontsize=11, color=INK)
    plain_axes(axes)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
