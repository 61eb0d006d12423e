"""The chart: how long the codecs take beside a copy, plain PyTorch and other libraries."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bench.errors import BenchError
from bench.results.charts import BLUE, FAINT, GRID, INK, ORANGE, PURPLE, VERMILION, lined, titled
from bench.results.record import Record
from bench.suites.kernels.contenders import ACTCORE, CLONE, COMPRESS, COPY, DECOMPRESS, PLAIN
from bench.suites.kernels.results import Measurement
from bench.units import size_name

_LOOKS = {  # colour, marker and size by whose code it is
    ACTCORE: (BLUE, "o", 9),
    PLAIN: (VERMILION, "s", 6),
    "bitsandbytes": (ORANGE, "^", 7),
    "torchao": (PURPLE, "D", 5.5),
    "fewbit": (INK, "v", 6),
    "torch": (FAINT, "|", 9),
}
_DTYPES = ("float32", "bfloat16")
_NOTHING = 1e-6  # where a bar begins on a logarithmic axis


def draw(record: Record) -> Figure:
    """A panel for each dtype and direction, of the largest tensors.

    Raises:
        BenchError: no codec was measured.
    """
    stored = [entry for entry in record.of(Measurement) if entry.get(ACTCORE, COMPRESS)]
    largest = max((entry.nbytes for entry in stored), default=0)
    shown = [entry for entry in stored if entry.nbytes == largest]
    dtypes = [dtype for dtype in _DTYPES if any(entry.dtype == dtype for entry in shown)]
    shown = [entry for entry in shown if entry.dtype in dtypes]
    if not shown:
        raise BenchError("a chart shows codecs with float32 or bfloat16; measure one of them")
    return _draw(record, shown, dtypes)


def _draw(record: Record, shown: Sequence[Measurement], dtypes: Sequence[str]) -> Figure:
    names = list(dict.fromkeys(entry.case for entry in shown))
    height = 1.4 + (0.5 + 0.33 * len(names)) * len(dtypes)
    figure, axes = plt.subplots(len(dtypes), 2, figsize=(11, height), sharex=True, sharey=True, squeeze=False)
    for row, dtype in zip(axes, dtypes, strict=True):
        for place, what, yardstick in zip(row, (COMPRESS, DECOMPRESS), (COPY, CLONE), strict=True):
            _draw_panel(place, [entry for entry in shown if entry.dtype == dtype], names, what)
            titled(place, f"{what} / {yardstick}, {dtype}")
    for place in axes[-1]:
        place.set_xlabel("times as long as the copy; band: target")
    _scale(axes[0][0], [entry.ratio(timing) for entry in shown for timing in entry.timings])
    whose = list(dict.fromkeys(timing.who for entry in shown for timing in entry.timings if timing.who in _LOOKS))
    handles = [_mark(axes[0][0], [], [], who, label=who) for who in whose if who != "torch"]
    figure.legend(
        handles=handles, loc="lower right", ncols=len(handles), frameon=False, bbox_to_anchor=(0.99, 0.0), fontsize=9
    )
    machine = record.machine
    figure.text(
        0.01,
        0.1 / height,
        f"{size_name(shown[0].nbytes)} a tensor, {record.settings['rounds']} rounds in turn, medians. "
        f"{machine.processor}, {machine.threads} threads,\ntorch {machine.versions['torch']}, {machine.date}, "
        f"commit {machine.commit[:10] or 'unknown'}{' with changes' if machine.dirty else ''}.",
        color=FAINT,
        fontsize=8,
    )
    panel = (height - 1.4) / len(dtypes) - 0.5
    figure.subplots_adjust(
        left=0.16, right=0.975, top=1 - 0.4 / height, bottom=1.0 / height, wspace=0.05, hspace=0.6 / panel
    )
    return figure


def _draw_panel(axes: Axes, entries: Sequence[Measurement], names: Sequence[str], what: str) -> None:
    for place, name in enumerate(names):
        for entry in entries:
            if entry.case == name:
                _draw_row(axes, entry, place, what)
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    lined(axes, "x")


def _draw_row(axes: Axes, entry: Measurement, place: int, what: str) -> None:
    if (target := entry.targets.get(what)) is not None:
        axes.barh(place, target - _NOTHING, left=_NOTHING, height=0.86, color="#E6F1F8", zorder=0)
    timings = [timing for timing in entry.timings if timing.what == what]
    ratios = [entry.ratio(timing) for timing in timings]
    axes.plot([min(ratios), max(ratios)], [place, place], color=GRID, linewidth=2.5, zorder=1)
    for timing, ratio in zip(timings, ratios, strict=True):
        _mark(axes, [ratio], [place], timing.who)
        if timing.who == ACTCORE:
            label = f"{ratio:.2f}"
            axes.text(0.012, place, label, transform=axes.get_yaxis_transform(), va="center", color=BLUE, weight="bold")


def _mark(axes: Axes, x: list[float], y: list[float], who: str, label: str = "") -> Line2D:
    colour, marker, size = _LOOKS.get(who, (INK, "x", 6))
    [line] = axes.plot(
        x,
        y,
        marker,
        color=colour,
        markersize=size,
        markeredgecolor="white",
        label=label or None,
        zorder=4 if who == ACTCORE else 3,
    )
    return line


def _scale(axes: Axes, ratios: Sequence[float]) -> None:
    axes.set_xscale("log")
    axes.set_xlim(0.5 * min(0.7, *ratios), 1.4 * max(2.0, *ratios))  # room for the numbers on the left
    axes.xaxis.set_major_locator(FixedLocator([0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 100, 300, 1000]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
