"""What ``python -m bench systems`` records."""

from __future__ import annotations

from dataclasses import replace

from bench.results.entry import Entry, Timed, at, metric, nested, numbers, part, series
from bench.results.record import Kind, Record, order_by
from bench.suites.memory.systems.subjects import NAMES
from bench.ways.compiled import COMPILED_WAYS, HOST_WAYS
from bench.ways.general import WAYS


@numbers
class Figures:
    """What a step takes of a device and of the processor beside it. ``None`` for what only CUDA counts, off CUDA."""

    kept_bytes: int | None = metric("bytes", "that the forward leaves allocated on the device, its result included")
    host_seconds: list[float] = series("s", "of steps, until the host had issued all of each")
    cpu_seconds: list[float] = series("s", "of all threads of the process meanwhile")
    before_bytes: int | None = metric("bytes", "in tensors before a step; the peaks below have them, too")
    requested_bytes: int | None = metric("bytes", "the peak of what tensors asked for")
    allocated_bytes: int | None = metric("bytes", "of that as the allocator rounds it")
    active_bytes: int | None = metric("bytes", "of blocks that nobody else may use, read by another stream among them")
    reserved_bytes: int | None = metric("bytes", "of all that the allocator has taken of the device")
    pinned_bytes: int | None = metric("bytes", "of pinned host memory in use")
    blas_bytes: int | None = metric("bytes", "of cuBLAS's workspaces, which stay allocated")
    workspace_bytes: int | None = metric("bytes", "the most that one operator of plain steps had for itself")
    workspace_of: str = metric("", "its name", default="")
    launches: int | None = metric("", "kernels that the host has launched")
    busy_seconds: float | None = metric("s", "in which a kernel ran")
    copy_seconds: float | None = metric("s", "in which something was copied between host and device")
    hidden: float | None = metric("", "the part of that in which a kernel ran, too")
    not_profiled: str = metric("", "why the last four are not known; empty otherwise", default="")
    captured_seconds: list[float] = series("s", "of steps that a CUDA graph replays, in which the host does nothing")
    not_captured: str = metric("", "why there are none; empty otherwise, and off CUDA", default="")


@numbers
class Fresh:
    """What steps take that find no gradients, as the first one after an optimizer's: their own come into being."""

    peak_bytes: int | None = metric("bytes", "the peak, less what is there after the step, its gradients among it")
    error: float | None = metric("", "as of the cell")
    seconds: list[float] = series("s", "as of the cell")
    plain_seconds: list[float] = series("s", "as of the cell")
    planned_bytes: int | None = metric("bytes", "as of the cell")
    planned_plain_bytes: int | None = metric("bytes", "as of the cell")


@part("ways", "a model, trained in one way, with steps that add to gradients, as with accumulation")
class Cell(Timed, Entry):
    """One model in one way."""

    subject: str = at("the model's name")
    way: str = at("how it is trained")
    what: str = metric("", "the model in words", default="")
    peak_bytes: int | None = metric("bytes", "the most in forward and backward, less what was there, gradients too")
    error: float | None = metric("", "of the whole gradient, relative, after a few steps; none where draws differ")
    seconds: list[float] = series("s", "of steps in this way")
    plain_seconds: list[float] = series("s", "of plain ones in turn")
    planned_bytes: int | None = metric("bytes", "the same peak by the plan that the step follows")
    planned_plain_bytes: int | None = metric("bytes", "the same, of a step that follows none")
    figures: Figures | None = nested(Figures, "of the device, where they were asked for")
    fresh: Fresh | None = nested(Fresh, "of steps that find no gradients")

    @property
    def as_fresh(self) -> Cell:
        """A cell whose own numbers are those of steps that find no gradients."""
        return replace(self, **vars(self.fresh or Fresh()), fresh=None)


@part("planning", "what planning for a model took")
class Planning(Entry):
    """One model."""

    subject: str = at("its name")
    what: str = metric("", "the model in words", default="")
    values: int = metric("", "of its forward; of both, where it was captured as it is and for rounding", default=0)
    options: int = metric("", "stores that these may wait in", default=0)
    choices: int = metric("", "that no other beats, by peak and time", default=0)
    capture_seconds: float = metric("s", "of the forwards", default=0.0)
    search_seconds: float = metric("s", "of the search", default=0.0)
    peak_ratio: float = metric("", "the least peak over the bound below which there is none", default=0.0)
    time_ratio: float | None = metric("", "time over its bound, of the plan within 30 % of the plain peak")


@part("compared", "plans of small random steps, beside every choice that there is")
class Compared(Entry):
    """Steps of so many operators."""

    ops: int = at("operators of each step")
    steps: int = metric("", "so many", default=0)
    searched: int = metric("", "of these, in which the search had not tried everything anyway", default=0)
    peak_ratio: float = metric("", "the worst peak, over the least one in the same time", default=0.0)
    time_ratio: float = metric("", "the worst time of a step, over the least one in the same peak", default=0.0)


@part("compiled", "a model, trained in one way under torch.compile, with steps that find no gradients")
class Compiled(Timed, Entry):
    """One model in one way."""

    subject: str = at("the model's name")
    way: str = at("how it is trained")
    what: str = metric("", "the model in words", default="")
    memory_bytes: int | None = metric("bytes", "the budget that the plan was given: the measured peak of torch's")
    peak_bytes: int | None = metric("bytes", "the peak, less what is there after the step, its gradients among it")
    planned_bytes: int | None = metric("bytes", "the same peak by the plan that the step follows")
    error: float | None = metric("", "of the whole gradient, relative to that of the compiled plain model")
    seconds: list[float] = series("s", "of steps in this way")
    plain_seconds: list[float] = series("s", "of plain steps that are not compiled, in turn")
    compile_seconds: float | None = metric("s", "that the first steps take beyond later ones: compiling, planning")
    not_followed: str = metric("", "why torch.compile does not follow the plan; empty otherwise", default="")


@part("host", "24 tiny layers under torch.compile, whose steps are mostly the host's time")
class Host(Timed, Entry):
    """The layers in one way."""

    way: str = at("how they are trained")
    seconds: list[float] = series("s", "of steps in this way, which add to gradients")
    plain_seconds: list[float] = series("s", "of plain steps that are not compiled, in turn")
    codecs: int | None = metric("", "calls of codecs in a step")
    codec_seconds: list[float] = series("s", "of these calls alone, with the step's own tensors")


def as_fresh(record: Record) -> Record:
    """The same of steps that find no gradients; without cells where none has such."""
    cells = record.of(Cell)
    some = any(cell.fresh is not None for cell in cells)
    return replace(record, entries=[cell.as_fresh for cell in cells] if some else [])


_in_cells = order_by(subject=NAMES, way=WAYS)
_in_compiled_cells = order_by(subject=NAMES, way=COMPILED_WAYS)
_in_host_cells = order_by(way=HOST_WAYS)


def _order(entry: Entry) -> tuple[object, ...]:
    if isinstance(entry, Host):
        return 2, *_in_host_cells(entry)
    if isinstance(entry, Compiled):
        return 1, *_in_compiled_cells(entry)
    return 0, *_in_cells(entry)


KIND = Kind(
    "systems",
    (Cell, Planning, Compared, Compiled, Host),
    {"device": "device", "seed": "seed"},
    order=_order,
    packages=("timm", "transformers", "torch-geometric"),
)
