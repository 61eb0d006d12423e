"""``SystemResults``: everything ``python -m bench systems`` found, with what is needed to repeat it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bench.kernels.clock import median_ratio
from bench.machine import Machine


@dataclass(frozen=True)
class Figures:
    """What a step takes of a device and of the processor beside it. ``None`` for what only CUDA counts, off CUDA.

    Attributes:
        kept_bytes: that the forward leaves allocated on the device, its result included.
        host_seconds: of steps, until the host had issued all of each; it waits where the device's queue is full.
        cpu_seconds: of all threads of the process meanwhile.
        before_bytes: in tensors before a step, weights and gradients among them. The peaks below include them; they
            are of a few steps in a row, in which the host runs ahead, from an empty cache.
        requested_bytes: the peak of what tensors asked for.
        allocated_bytes: of that as the allocator rounds it.
        active_bytes: of blocks that nobody else may use, those among them that another stream still reads.
        reserved_bytes: of all that the allocator has taken of the device.
        pinned_bytes: of pinned host memory in use; ``None`` where torch does not count it, too.
        blas_bytes: of cuBLAS's workspaces, which stay allocated.
        workspace_bytes, workspace_of: the most that one operator had for itself while it ran, and its name; of plain
            steps alone.
        launches: kernels that the host has launched.
        busy_seconds: in which a kernel ran.
        copy_seconds: in which something was copied between host and device.
        hidden: the part of that in which a kernel ran, too; ``None`` where nothing was copied.
        not_profiled: why the last four are not known; empty otherwise.
    """

    kept_bytes: int | None = None
    host_seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    before_bytes: int | None = None
    requested_bytes: int | None = None
    allocated_bytes: int | None = None
    active_bytes: int | None = None
    reserved_bytes: int | None = None
    pinned_bytes: int | None = None
    blas_bytes: int | None = None
    workspace_bytes: int | None = None
    workspace_of: str = ""
    launches: int | None = None
    busy_seconds: float | None = None
    copy_seconds: float | None = None
    hidden: float | None = None
    not_profiled: str = ""


@dataclass(frozen=True)
class Fresh:
    """What steps take that find no gradients, as the first one after an optimizer's: their own come into being. The
    fields are those of ``Cell``.

    Attributes:
        peak_bytes: less what is there after the step, its gradients among it.
    """

    peak_bytes: int | None = None
    error: float | None = None
    seconds: list[float] = field(default_factory=list)
    plain_seconds: list[float] = field(default_factory=list)
    planned_bytes: int | None = None
    planned_plain_bytes: int | None = None


@dataclass(frozen=True)
class Cell:
    """One model, trained in one way. What is not in ``fresh`` is of steps that add to gradients, as with accumulation.

    Attributes:
        subject, way: names in ``SUBJECTS`` and ``WAYS``.
        what: the model in words.
        peak_bytes: the activation peak of a step: the most during forward and backward, less what was there before,
            the gradients among it, to which the step adds; ``None`` where it was not measured.
        error: of the whole gradient, relative to a plain step's with the same random numbers, after a few steps, in
            which a level that adapts has done so; ``None`` where it was not measured, or the way drops other elements
            than torch's layers do.
        seconds, plain_seconds: of steps in this way, and of plain ones in turn; in files without ``fresh`` they find no
            gradients.
        does_not_apply: why the way is none for this model; empty otherwise.
        failure: what went wrong; empty otherwise.
        commit: that this was measured with.
        planned_bytes, planned_plain_bytes: the same peak by the plan that the step follows, and of one that follows
            none; ``None`` for ways without a plan.
        figures: of the device; ``None`` where they were not asked for.
        fresh: of steps that find no gradients; ``None`` in files of before these were measured.
    """

    subject: str
    way: str
    what: str = ""
    peak_bytes: int | None = None
    error: float | None = None
    seconds: list[float] = field(default_factory=list)
    plain_seconds: list[float] = field(default_factory=list)
    does_not_apply: str = ""
    failure: str = ""
    commit: str = ""
    planned_bytes: int | None = None
    planned_plain_bytes: int | None = None
    figures: Figures | None = None
    fresh: Fresh | None = None

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Cell:
        """From what ``dataclasses.asdict`` made of one."""
        figures, fresh = content.get("figures"), content.get("fresh")
        parts = {
            "figures": None if figures is None else Figures(**figures),
            "fresh": None if fresh is None else Fresh(**fresh),
        }
        return cls(**{**content, **parts})

    @property
    def as_fresh(self) -> Cell:
        """A cell whose own numbers are those of steps that find no gradients."""
        return replace(self, **vars(self.fresh or Fresh()), fresh=None)

    @property
    def ratio(self) -> float | None:
        """A step's time over the plain one's of the same round, the median over rounds; ``None`` where not timed."""
        return median_ratio(self.seconds, self.plain_seconds) if self.seconds else None


@dataclass(frozen=True)
class Planning:
    """What planning for a model took.

    Attributes:
        subject: the model's name.
        what: the model in words.
        values: of its forward; of both, where it was captured as it is and for rounding.
        options: stores that these may wait in.
        choices: that no other beats, by peak and time.
        capture_seconds, search_seconds: of the forwards, and of the search.
        peak_ratio: the least peak over the bound below which there is none.
        time_ratio: of the plan within 30 % of the plain peak, the step's modelled time over the bound below which its
            graph has none with its peak; ``None`` where no plan has so low a peak.
    """

    subject: str
    what: str
    values: int
    options: int
    choices: int
    capture_seconds: float
    search_seconds: float
    peak_ratio: float
    time_ratio: float | None


@dataclass(frozen=True)
class Compared:
    """Plans of small random steps, beside every choice that there is.

    Attributes:
        ops: operators of each step.
        steps: so many.
        searched: of these, in which the search had not tried everything anyway.
        peak_ratio: the worst peak, over the least one in the same time.
        time_ratio: the worst time of a step, over the least one in the same peak.
    """

    ops: int
    steps: int
    searched: int
    peak_ratio: float
    time_ratio: float


@dataclass(frozen=True)
class SystemResults:
    """What ``python -m bench systems`` found.

    Attributes:
        machine: where and with what.
        device: ``"cpu"`` or ``"cuda"``.
        seed: of weights and inputs.
        cells: by model and way.
        skipped: what was left out, and why.
        seconds: that it took, what was taken up included.
        plannings: by model, of the part ``planning``.
        compared: by the number of operators, of that part.
    """

    machine: Machine
    device: str
    seed: int = 0
    cells: list[Cell] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    seconds: float = 0.0
    plannings: list[Planning] = field(default_factory=list)
    compared: list[Compared] = field(default_factory=list)

    def cell(self, subject: str, way: str) -> Cell | None:
        """Of a model, trained in a way."""
        return next((one for one in self.cells if (one.subject, one.way) == (subject, way)), None)

    @property
    def as_fresh(self) -> SystemResults:
        """The same of steps that find no gradients; without cells where none has such."""
        return replace(self, cells=[cell.as_fresh for cell in self.cells] if self.has_fresh else [])

    @property
    def has_fresh(self) -> bool:
        """Whether any cell has steps that find no gradients."""
        return any(cell.fresh is not None for cell in self.cells)

    @property
    def subjects(self) -> list[str]:
        """Those of which there are cells, in order."""
        return list(dict.fromkeys(cell.subject for cell in self.cells))

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> SystemResults:
        """From what ``dataclasses.asdict`` made of one."""
        fields = dict(content)
        return cls(
            machine=Machine(**fields.pop("machine")),
            cells=[Cell.of(cell) for cell in fields.pop("cells")],
            plannings=[Planning(**entry) for entry in fields.pop("plannings", ())],
            compared=[Compared(**entry) for entry in fields.pop("compared", ())],
            **fields,
        )
