"""The tables and the chart of ``python -m bench kernels``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bench.errors import BenchError
from bench.results.charts import BLUE, FAINT, GRID, INK, ORANGE, PURPLE, VERMILION, lined, titled
from bench.results.record import Record
from bench.results.report import Report
from bench.results.tables import Column, bounded, commands, labelled, marked, number, table
from bench.suites.kernels.contenders import ACTCORE, CLONE, COMPRESS, COPY, DECOMPRESS, PLAIN, TORCH, TRAIN
from bench.suites.kernels.entries import YARDSTICKS, Measurement, Timing
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


SMALL = 64 * 2**10  # up to here a call's own cost is what counts
CALL_TARGET = 20.0  # microseconds of a compress and a decompress together, on a CPU

TITLE = "Codecs and operators beside a copy"


def tables(record: Record) -> Iterator[Table]:
    """One for each size of tensors and direction, one of operators, and one of small tensors."""
    measured = record.measured(Measurement)
    stored = [entry for entry in measured if entry.get(ACTCORE, COMPRESS)]
    for nbytes in sorted({entry.nbytes for entry in stored if entry.nbytes > SMALL}):
        for what in (COMPRESS, DECOMPRESS):
            yield _codecs(nbytes, what, [entry for entry in stored if entry.nbytes == nbytes])
    if trained := [entry for entry in measured if entry.get(ACTCORE, TRAIN)]:
        yield _operators(trained)
    if small := [entry for entry in stored if entry.nbytes <= SMALL]:
        yield _calls(record.settings["device"], small)


def head(record: Record) -> Text:
    """The header, with the libraries that took part."""
    libraries = ", ".join(f"{library} {state}" for library, state in record.settings["libraries"].items())
    took = f"{record.settings['rounds']} rounds, {record.seconds / 60:.1f} minutes"
    return labelled(
        TITLE,
        machine=str(record.machine),
        beside=libraries or "nothing else",
        command=f"{commands(record.machine)}; {took}",
    )


def _codecs(nbytes: int, what: str, entries: list[Measurement]) -> Table:
    """Time over a copy's, and bytes a second, of each codec in one direction."""
    dtypes = [entry.dtype for entry in entries]
    return table(
        sorted(entries, key=lambda entry: dtypes.index(entry.dtype)),
        ("dtype, codec", lambda entry: f"  {entry.case}"),
        *_times_over(YARDSTICKS[what], what, _others(entries)),
        above=lambda entry: entry.dtype,
        sections=True,
        title=f"{what}, {size_name(nbytes)} a tensor",
    )


def _times_over(yardstick: str, what: str, others: Sequence[str]) -> Iterator[Column[Measurement]]:
    """Columns of actcore's time over another's and its bytes a second, and of the times of others."""

    def own(entry: Measurement) -> Timing:
        found = entry.get(ACTCORE, what)
        assert found is not None
        return found

    def ratio(entry: Measurement, who: str) -> str:
        timing = entry.get(who, what)
        return "" if timing is None else f"{entry.ratio(timing):.1f}"

    yield f"actcore\n/ {yardstick}", lambda entry: marked(f"{entry.ratio(own(entry)):.2f}", entry.reached(own(entry)))
    yield "logical_io_gbps", lambda entry: f"{own(entry).logical_io_gbps:.1f}"
    yield "logical_io_vs_\nachievable_%", lambda entry: f"{100 * entry.achievable(own(entry)):.0f}"
    for who in others:
        yield f"{who}\n/ {yardstick}", partial(ratio, who=who)


def _operators(entries: list[Measurement]) -> Table:
    return table(
        entries,
        ("operator", lambda entry: entry.case),
        *_DTYPE_AND_SIZE,
        *_times_over("torch", TRAIN, [who for who in _others(entries) if who != TORCH]),
        labels=3,
        title="Operators: forward + backward, over torch's own",
    )


def _calls(device: str, entries: list[Measurement]) -> Table:
    def microseconds(entry: Measurement, who: str) -> RenderableType:
        most = CALL_TARGET if device == "cpu" and who == ACTCORE else None
        time = entry.call_microseconds(who)
        return number(time, ".1f") if who != ACTCORE else bounded(time, ".1f", most=most)

    where = "of the GPU, without Python's" if device == "cuda" else "called from Python"
    return table(
        entries,
        ("codec", lambda entry: entry.case),
        *_DTYPE_AND_SIZE,
        *((who, partial(microseconds, who=who)) for who in (ACTCORE, *_others(entries))),
        labels=3,
        title=f"Small tensors: microseconds of compress and decompress together, {where}",
    )


_DTYPE_AND_SIZE: tuple[Column[Measurement], ...] = (
    ("dtype", lambda entry: entry.dtype),
    ("size", lambda entry: size_name(entry.nbytes)),
)


def notes(record: Record) -> Iterator[str]:
    """What the numbers are."""
    yield (
        "Ratios: one's time over that of copy_ (into memory that is there) or clone (into new memory) of the same "
        "tensor in the same round, median over rounds. Others, and copies beside them, take turns of their own. "
        "✓ within the target, ✗ not."
    )
    yield (
        "logical_io_gbps: 10^9 bytes a second that must be read and written, each once. logical_io_vs_achievable_%: "
        "the same as a fraction of copy_'s."
    )
    for entry in record.of(Measurement):
        if entry.failure:
            yield f"{entry.case}, {entry.dtype}, {size_name(entry.nbytes)} failed: {entry.failure}"


def _others(entries: list[Measurement]) -> list[str]:
    """Whoever else takes part, plain PyTorch first."""
    found = [timing.who for entry in entries for timing in entry.timings if timing.what not in (COPY, CLONE)]
    return sorted(set(found) - {ACTCORE}, key=lambda who: (who != PLAIN, found.index(who)))


REPORT = Report(TITLE, tables, notes, head=head, draw=draw)
