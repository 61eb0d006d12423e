"""The chart: peak against time for some models, and the cut of every model beside the published one."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.errors import BenchError
from bench.models.architectures import ARCHITECTURES
from bench.results.charts import BLUE, FAINT, GREEN, GREY, INK, ORANGE, VERMILION, beside, footer, lined, titled
from bench.results.record import Record
from bench.suites.memory.checkpoint.results import Peak, Planned, StepTimes
from bench.suites.memory.checkpoint.results import cut as cut_of
from bench.ways.checkpoints import CLOSE, LEAST, PLAIN

_MOST = 3  # models whose peak is drawn against time


def draw(record: Record) -> Figure:
    """A panel for each of a few models, and one of all cuts.

    Raises:
        BenchError: nothing was measured.
    """
    close, cuts = _close(record), _cuts(record)
    if not close and not cuts:
        raise BenchError("there is nothing to draw: no peak was measured; the text above says why")
    count = len(close) + bool(cuts)
    height = max(4.6, 1.8 + 0.22 * len(cuts))
    figure, row = plt.subplots(1, count, figsize=(1.5 + 5 * count, height), squeeze=False)
    for axes, (model, batch, size) in zip(row[0], close, strict=False):
        _draw_model(axes, record, model, batch, size)
    if cuts:
        _draw_cuts(row[0, -1], record, cuts)
    for axes in row[0]:
        axes.set_axisbelow(True)
    text = (
        "Activation peaks of forward and backward, times of a step; lines: planned, by the model of operators' times."
    )
    footer(figure, text, record.machine)
    figure.tight_layout(rect=(0, 0.42 / height, 1, 1))
    return figure


def _close(record: Record) -> list[tuple[str, int, int]]:
    """Models and sizes with measured times: those that were looked at closely, or the first ones."""
    sizes = dict.fromkeys((time.model, time.batch, time.size) for time in record.of(StepTimes) if not time.failure)
    chosen = [size for size in sizes if size[0] in CLOSE]
    return chosen or list(sizes)[:_MOST]


def _cuts(record: Record) -> list[Peak]:
    """The least measured peaks, each model's at its largest size."""
    found: dict[str, Peak] = {}
    for peak in record.of(Peak):
        if peak.way == LEAST and cut_of(record, peak) is not None:
            before = found.get(peak.model)
            if before is None or peak.batch * peak.size**2 > before.batch * before.size**2:
                found[peak.model] = peak
    return list(found.values())


def _draw_model(axes: Axes, record: Record, model: str, batch: int, size: int) -> None:
    """The planned front, and every way's measured peak and time."""
    plan = record.find(Planned, model=model, batch=batch, size=size)
    if plan is not None and not plan.failure:
        parts = [100 * peak / plan.plain_bytes for peak in plan.peaks]
        axes.step(parts, [1 + one for one in plan.overheads], where="post", color=GREY, linewidth=3, label="planned")
    plain = record.find(Peak, model=model, way=PLAIN, batch=batch, size=size)
    for time in record.of(StepTimes, model=model, batch=batch, size=size):
        peak = record.find(Peak, model=model, way=time.way, batch=batch, size=size)
        if time.failure or peak is None:
            continue
        if plain is None or not plain.peak_bytes or peak.peak_bytes is None:
            continue
        _draw_way(axes, time, 100 * peak.peak_bytes / plain.peak_bytes)
    lined(axes)
    axes.set_xlim(left=0)
    axes.set_xlabel("activation peak, % of the plain step's")
    axes.set_ylabel("step time over plain's")
    titled(axes, f"{model}, {batch} at {size}")


def _draw_way(axes: Axes, time: StepTimes, part: float) -> None:
    colours = {"ours": BLUE, "plain": INK, "each block": ORANGE, "torch.compile": VERMILION}
    colour = next((colour for start, colour in colours.items() if time.way.startswith(start)), GREEN)
    low, high = time.times_plain - min(time.ratios), max(time.ratios) - time.times_plain
    axes.errorbar(part, time.times_plain, [[low], [high]], fmt="o", color=colour, elinewidth=1, markeredgecolor="white")
    beside(axes, time.way, (part, time.times_plain), (5, 4), fontsize=7, color=colour)


def _draw_cuts(axes: Axes, record: Record, peaks: list[Peak]) -> None:
    for place, peak in enumerate(peaks):
        axes.barh(place, 100 * (cut_of(record, peak) or 0), color=BLUE, height=0.62)
        architecture = ARCHITECTURES.get(peak.model)
        if architecture is not None and architecture.published is not None:
            cut = 100 * architecture.published.cut
            axes.plot([cut, cut], [place - 0.42, place + 0.42], color=VERMILION, linewidth=2)
    axes.set_yticks(range(len(peaks)), [f"{peak.model}, {peak.batch} at {peak.size}" for peak in peaks], fontsize=8)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    lined(axes, "x")
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the plain peak; line: published, of a GPU")
    titled(axes, "What the least peak saves")
    axes.xaxis.label.set_color(FAINT)
