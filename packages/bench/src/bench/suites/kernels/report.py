"""The tables and the chart of ``python -m bench kernels``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from rich.console import RenderableType
from rich.table import Table

from bench.results.charts import BLUE, FAINT, INK, ORANGE, PURPLE, VERMILION, Panel, Series
from bench.results.record import Record
from bench.results.report import Report
from bench.results.tables import Column, bounded, marked, number, table
from bench.suites.kernels.contenders import ACTCORE, CLONE, COMPRESS, COPY, DECOMPRESS, PLAIN, TORCH, TRAIN
from bench.suites.kernels.entries import YARDSTICKS, Measurement, Timing
from bench.units import size_name

_DTYPES = ("float32", "bfloat16")


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


def _others(entries: list[Measurement]) -> list[str]:
    """Whoever else takes part, plain PyTorch first."""
    found = [timing.who for entry in entries for timing in entry.timings if timing.what not in (COPY, CLONE)]
    return sorted(set(found) - {ACTCORE}, key=lambda who: (who != PLAIN, found.index(who)))


COLORS = {ACTCORE: BLUE, PLAIN: VERMILION, "bitsandbytes": ORANGE, "torchao": PURPLE, "fewbit": INK, TORCH: FAINT}


def panels(record: Record) -> list[Panel]:
    """Times over a copy's, a panel for each dtype and direction, of the largest tensors."""
    stored = [entry for entry in record.of(Measurement) if entry.get(ACTCORE, COMPRESS) and entry.dtype in _DTYPES]
    largest = max((entry.nbytes for entry in stored), default=0)
    shown = [entry for entry in stored if entry.nbytes == largest]
    return [
        _draw_times(dtype, what, [entry for entry in shown if entry.dtype == dtype])
        for dtype in _DTYPES
        for what in (COMPRESS, DECOMPRESS)
        if any(entry.dtype == dtype for entry in shown)
    ]


def _draw_times(dtype: str, what: str, entries: list[Measurement]) -> Panel:
    series = []
    for who in (*_others(entries), ACTCORE):
        timings = [(place, entry, entry.get(who, what)) for place, entry in enumerate(entries)]
        found = [(entry.ratio(timing), place) for place, entry, timing in timings if timing is not None]
        if found:
            ratios, places = zip(*found, strict=True)
            series.append(Series(ratios, places, who, COLORS.get(who, INK)))
    title = f"{what} / {YARDSTICKS[what]}, {dtype}"
    return Panel(title, "times as long", rows=[entry.case for entry in entries], series=series, log="x", line=1)


def _head(record: Record) -> dict[str, str]:
    libraries = ", ".join(f"{library} {state}" for library, state in record.settings["libraries"].items())
    return {"beside": libraries or "nothing else"}


def _caption(record: Record) -> str:
    largest = max(entry.nbytes for entry in record.of(Measurement))
    return f"{size_name(largest)} a tensor, {record.settings['rounds']} rounds in turn, medians."


REPORT = Report("Codecs and operators beside a copy", tables, head=_head, panels=panels, caption=_caption)
