"""What a step takes of the device and of the processor beside it, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from bench.results.record import Record
from bench.results.tables import mib, milliseconds, number, percent, table
from bench.systems.results import Cell, Figures
from bench.systems.ways import PLAIN, label


def tables_of_figures(record: Record, subject: str) -> Iterator[Table]:
    """A table of memory and one of times for a model; none where no figures were asked for."""
    cells = [(cell, cell.figures) for cell in record.of(Cell) if cell.subject == subject and cell.figures is not None]
    if cells:
        yield _memory(cells)
        yield _times(cells)


def notes_of_figures(record: Record) -> Iterator[str]:
    """What the tables mean, and what is in no column of theirs."""
    cells = [(cell, cell.figures) for cell in record.of(Cell) if cell.figures is not None]
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
        "busy: in which a kernel ran: what step has beyond it, the device has waited for the host. captured: the step "
        "as a CUDA graph replays it, in which the host does nothing. copies: between host and device; hidden: the part "
        "of them in which a kernel ran."
    )
    if record.settings["device"] != "cuda":
        yield "Launches, busy, copies, and peaks of the allocator are counted on CUDA alone; this was no GPU."
    for cell, figures in cells:
        where = f"{cell.subject}, {cell.way}"
        if figures.workspace_of:
            most = figures.workspace_bytes or 0
            yield f"{where}: the most that an operator had for itself: {mib(most)} MiB, {figures.workspace_of}."
        if cell.planned_bytes and cell.peak_bytes:
            more = cell.peak_bytes - cell.planned_bytes
            yield f"{where}: the measured peak is {mib(more)} MiB above the planned one{_plain(record, cell)}."
        if figures.not_profiled:
            yield f"{where} was not profiled: {figures.not_profiled.rstrip('.')}."
        if figures.not_captured:
            yield f"{where} was not captured: {figures.not_captured.rstrip('.')}."


def _plain(record: Record, cell: Cell) -> str:
    """How far the plain step is from what the plan has for it."""
    plain = record.find(Cell, subject=cell.subject, way=PLAIN)
    if plain is None or not plain.peak_bytes or not cell.planned_plain_bytes:
        return ""
    return f", plain's {mib(plain.peak_bytes - cell.planned_plain_bytes)} MiB"


def _memory(rows: Sequence[tuple[Cell, Figures]]) -> Table:
    return table(
        rows,
        (f"{rows[0][0].what}: memory, MiB", lambda row: label(row[0].way)),
        ("kept", lambda row: mib(row[1].kept_bytes)),
        ("planned", lambda row: mib(row[0].planned_bytes)),
        ("planned,\nplain", lambda row: mib(row[0].planned_plain_bytes)),
        ("peak", lambda row: mib(row[0].peak_bytes)),
        ("requested", lambda row: mib(row[1].requested_bytes)),
        ("allocated", lambda row: mib(row[1].allocated_bytes)),
        ("active", lambda row: mib(row[1].active_bytes)),
        ("reserved", lambda row: mib(row[1].reserved_bytes)),
        ("pinned", lambda row: mib(row[1].pinned_bytes)),
        ("cuBLAS", lambda row: mib(row[1].blas_bytes)),
    )


def _times(rows: Sequence[tuple[Cell, Figures]]) -> Table:
    return table(
        rows,
        (f"{rows[0][0].what}: time", lambda row: label(row[0].way)),
        ("step\nms", lambda row: milliseconds(row[0].seconds)),
        ("plain's\nms", lambda row: milliseconds(row[0].plain_seconds)),
        ("issued\nms", lambda row: milliseconds(row[1].host_seconds)),
        ("CPU\nms", lambda row: milliseconds(row[1].cpu_seconds)),
        ("launches", lambda row: f"{row[1].launches:,}" if row[1].launches else ""),
        ("busy\nms", lambda row: milliseconds([row[1].busy_seconds] if row[1].busy_seconds else [])),
        ("captured\nms", lambda row: milliseconds(row[1].captured_seconds)),
        ("copies\nms", lambda row: milliseconds([row[1].copy_seconds] if row[1].copy_seconds else [])),
        ("hidden\n%", lambda row: percent(row[1].hidden, 1) if row[1].hidden else number(row[1].hidden, ".0f")),
    )
