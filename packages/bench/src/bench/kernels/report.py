"""Results of ``python -m bench kernels`` as text: a table for each size, then the operators, then the small tensors."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.kernels.contenders import ACTCORE, CLONE, COMPRESS, COPY, DECOMPRESS, PLAIN, TORCH, TRAIN
from bench.kernels.results import YARDSTICKS, KernelResults, Measurement
from bench.marks import marked
from bench.units import size_name

SMALL = 64 * 2**10  # up to here a call's own cost is what counts
CALL_TARGET = 20.0  # microseconds of a compress and a decompress together, on a CPU

_GBPS, _ACHIEVABLE = "logical_io_gbps", "logical_io_vs_\nachievable_%"


def render(results: KernelResults) -> RenderableType:
    """Header, tables and notes."""
    stored = [entry for entry in results.measurements if entry.get(ACTCORE, COMPRESS)]
    trained = [entry for entry in results.measurements if entry.get(ACTCORE, TRAIN)]
    sizes = sorted({entry.nbytes for entry in stored if entry.nbytes > SMALL})
    parts: list[RenderableType] = [_header(results)]
    parts += [
        _codecs(nbytes, what, [entry for entry in stored if entry.nbytes == nbytes])
        for nbytes in sizes
        for what in (COMPRESS, DECOMPRESS)
    ]
    if trained:
        parts.append(_operators(trained))
    if small := [entry for entry in stored if entry.nbytes <= SMALL]:
        parts.append(_calls(results.device, small))
    return Group(*parts, _notes(results))


def _header(results: KernelResults) -> Text:
    others = ", ".join(f"{library} {state}" for library, state in results.libraries.items())
    return Text.assemble(
        ("Codecs and operators beside a copy\n", "bold"),
        ("machine  ", "dim"),
        f"{results.machine}\n",
        ("beside   ", "dim"),
        f"{others or 'nothing else'}\n",
        ("command  ", "dim"),
        f"{results.machine.command}; {results.rounds} rounds, {results.seconds / 60:.1f} minutes\n",
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


def _notes(results: KernelResults) -> Text:
    lines = [
        "Ratios: one's time over that of copy_ (into memory that is there) or clone (into new memory) of the same "
        "tensor in the same round, median over rounds. Others, and copies beside them, take turns of their own. "
        "✓ within the target, ✗ not.",
        "logical_io_gbps: 10^9 bytes a second that must be read and written, each once. logical_io_vs_achievable_%: "
        "the same as a fraction of copy_'s.",
        *(f"left out: {line}" for line in results.skipped),
    ]
    return Text("\n".join(lines), style="dim")


def _others(entries: list[Measurement]) -> list[str]:
    """Whoever else takes part, plain PyTorch first."""
    found = [timing.who for entry in entries for timing in entry.timings if timing.what not in (COPY, CLONE)]
    return sorted(set(found) - {ACTCORE}, key=lambda who: (who != PLAIN, found.index(who)))


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
