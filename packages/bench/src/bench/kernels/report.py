"""What is printed of ``python -m bench kernels``: a table for each size, the operators, and the small tensors."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bench.kernels.chart import draw
from bench.kernels.contenders import ACTCORE, CLONE, COMPRESS, COPY, DECOMPRESS, PLAIN, TORCH, TRAIN
from bench.kernels.results import YARDSTICKS, Measurement
from bench.results.record import Record
from bench.results.report import Report
from bench.results.tables import commands, marked
from bench.units import size_name

SMALL = 64 * 2**10  # up to here a call's own cost is what counts
CALL_TARGET = 20.0  # microseconds of a compress and a decompress together, on a CPU

TITLE = "Codecs and operators beside a copy"
_GBPS, _ACHIEVABLE = "logical_io_gbps", "logical_io_vs_\nachievable_%"


def tables(record: Record) -> Iterator[Table]:
    """One for each size of tensors and direction, one of operators, and one of small tensors."""
    measured = [entry for entry in record.of(Measurement) if not entry.failure]
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
    others = ", ".join(f"{library} {state}" for library, state in record.settings["libraries"].items())
    return Text.assemble(
        (f"{TITLE}\n", "bold"),
        ("machine  ", "dim"),
        f"{record.machine}\n",
        ("beside   ", "dim"),
        f"{others or 'nothing else'}\n",
        ("command  ", "dim"),
        f"{commands(record.machine)}; {record.settings['rounds']} rounds, {record.seconds / 60:.1f} minutes\n",
    )


def _codecs(nbytes: int, what: str, entries: list[Measurement]) -> Table:
    """Time over a copy's, and bytes a second, of each codec in one direction."""
    others = _others(entries)
    table = _table(f"{what}, {size_name(nbytes)} a tensor")
    table.add_column("dtype, codec", no_wrap=True)
    headings = (
        f"actcore\n/ {YARDSTICKS[what]}",
        _GBPS,
        _ACHIEVABLE,
        *(f"{who}\n/ {YARDSTICKS[what]}" for who in others),
    )
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    dtype = ""
    dtypes = [entry.dtype for entry in entries]
    for entry in sorted(entries, key=lambda entry: dtypes.index(entry.dtype)):
        if entry.dtype != dtype:
            if dtype:
                table.add_section()
            dtype = entry.dtype
            table.add_row(Text(dtype, style="bold"))
        table.add_row(f"  {entry.case}", *_numbers(entry, what, others))
    return table


def _numbers(entry: Measurement, what: str, others: list[str]) -> Iterator[RenderableType]:
    own = entry.get(ACTCORE, what)
    assert own is not None
    yield marked(f"{entry.ratio(own):.2f}", entry.reached(own))
    yield f"{own.logical_io_gbps:.1f}"
    yield f"{100 * entry.achievable(own):.0f}"
    for who in others:
        timing = entry.get(who, what)
        yield "" if timing is None else f"{entry.ratio(timing):.1f}"


def _operators(entries: list[Measurement]) -> Table:
    others = [who for who in _others(entries) if who != TORCH]
    table = _table("Operators: forward + backward, over torch's own")
    for heading in ("operator", "dtype", "size"):
        table.add_column(heading, no_wrap=True)
    for heading in ("actcore\n/ torch", _GBPS, _ACHIEVABLE, *(f"{who}\n/ torch" for who in others)):
        table.add_column(heading, justify="right")
    for entry in entries:
        table.add_row(entry.case, entry.dtype, size_name(entry.nbytes), *_numbers(entry, TRAIN, others))
    return table


def _calls(device: str, entries: list[Measurement]) -> Table:
    of = "of the GPU, without Python's" if device == "cuda" else "called from Python"
    table = _table(f"Small tensors: microseconds of compress and decompress together, {of}")
    for heading in ("codec", "dtype", "size"):
        table.add_column(heading, no_wrap=True)
    others = _others(entries)
    for who in (ACTCORE, *others):
        table.add_column(who, justify="right")
    for entry in entries:
        own = entry.call_microseconds(ACTCORE)
        assert own is not None
        beside = [entry.call_microseconds(who) for who in others]
        table.add_row(
            entry.case,
            entry.dtype,
            size_name(entry.nbytes),
            marked(f"{own:.1f}", own < CALL_TARGET if device == "cpu" else None),
            *("" if time is None else f"{time:.1f}" for time in beside),
        )
    return table


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


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)


REPORT = Report(TITLE, tables, notes, head=head, draw=draw)
