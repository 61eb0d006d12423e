"""What a step takes of the device and of the processor beside it, as text."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from rich.table import Table

from bench.layout import columns
from bench.systems.results import Cell, Figures, SystemResults
from bench.systems.ways import PLAIN, label
from bench.units import MIB


def tables_of_figures(results: SystemResults, subject: str) -> Iterator[Table]:
    """A table of memory and one of times for a model; none where no figures were asked for."""
    cells = [(cell, cell.figures) for cell in results.cells if cell.subject == subject and cell.figures is not None]
    if cells:
        yield _memory(cells)
        yield _times(cells)


def notes_of_figures(results: SystemResults) -> Iterator[str]:
    """What the tables mean, and what is in no column of theirs."""
    cells = [(cell, cell.figures) for cell in results.cells if cell.figures is not None]
    if not cells:
        return
    yield (
        "memory: kept: what the forward leaves allocated on the device; planned: the activation peak by the plan that "
        "the step follows, plain's beside it; peak: the measured one, of single steps. requested, allocated, active "
        "and reserved: peaks of all that the process has, weights and gradients included, over three steps in a row: "
        "what tensors asked for, as the allocator rounds it, with what another stream still reads, and all that the "
        "allocator has taken of the device. pinned: host memory. cuBLAS: its workspaces, allocated to stay."
    )
    yield (
        "time: medians; step: on CUDA of two in a row, until the device is done. issued: until the host had issued the "
        "step, CPU: of all threads of the process meanwhile; where the device's queue is full, the host waits in both. "
        "busy: in which a kernel ran: what step has beyond it, the device has waited for the host. copies: between "
        "host and device; hidden: the part of them in which a kernel ran."
    )
    if results.device != "cuda":
        yield "Launches, busy, copies, and peaks of the allocator are counted on CUDA alone; this was no GPU."
    for cell, figures in cells:
        where = f"{cell.subject}, {cell.way}"
        if figures.workspace_of:
            most = figures.workspace_bytes or 0
            yield f"{where}: the most that an operator had for itself: {_mib(most)} MiB, {figures.workspace_of}."
        if cell.planned_bytes and cell.peak_bytes:
            more = cell.peak_bytes - cell.planned_bytes
            yield f"{where}: the measured peak is {_mib(more)} MiB above the planned one{_plain(results, cell)}."
        if figures.not_profiled:
            yield f"{where} was not profiled: {figures.not_profiled.rstrip('.')}."


def _plain(results: SystemResults, cell: Cell) -> str:
    """How far the plain step is from what the plan has for it."""
    plain = results.cell(cell.subject, PLAIN)
    if plain is None or not plain.peak_bytes or not cell.planned_plain_bytes:
        return ""
    return f", plain's {_mib(plain.peak_bytes - cell.planned_plain_bytes)} MiB"


def _memory(cells: Sequence[tuple[Cell, Figures]]) -> Table:
    heads = ("kept", "planned", "planned,\nplain", "peak", "requested", "allocated", "active", "reserved")
    table = columns(f"{cells[0][0].what}: memory, MiB", *heads, "pinned", "cuBLAS")
    for cell, found in cells:
        numbers = (
            found.kept_bytes,
            cell.planned_bytes,
            cell.planned_plain_bytes,
            cell.peak_bytes,
            found.requested_bytes,
            found.allocated_bytes,
            found.active_bytes,
            found.reserved_bytes,
            found.pinned_bytes,
            found.blas_bytes,
        )
        table.add_row(label(cell.way), *map(_mib, numbers))
    return table


def _times(cells: Sequence[tuple[Cell, Figures]]) -> Table:
    heads = ("step\nms", "plain's\nms", "issued\nms", "CPU\nms", "launches", "busy\nms", "copies\nms", "hidden\n%")
    table = columns(f"{cells[0][0].what}: time", *heads)
    for cell, found in cells:
        table.add_row(
            label(cell.way),
            *(_median(times) for times in (cell.seconds, cell.plain_seconds, found.host_seconds, found.cpu_seconds)),
            f"{found.launches:,}" if found.launches else "",
            _milliseconds(found.busy_seconds),
            _milliseconds(found.copy_seconds),
            "" if found.hidden is None else f"{100 * found.hidden:.0f}",
        )
    return table


def _mib(nbytes: int | None) -> str:
    return "" if nbytes is None else f"{nbytes / MIB:,.1f}"


def _median(times: Sequence[float]) -> str:
    return _milliseconds(statistics.median(times)) if times else ""


def _milliseconds(seconds: float | None) -> str:
    return f"{1000 * seconds:,.1f}" if seconds else ""
