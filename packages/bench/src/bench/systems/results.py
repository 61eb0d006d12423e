"""``SystemResults``: everything ``python -m bench systems`` found, with what is needed to repeat it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.kernels.clock import median_ratio
from bench.machine import Machine


@dataclass(frozen=True)
class Cell:
    """One model, trained in one way.

    Attributes:
        subject, way: names in ``SUBJECTS`` and ``WAYS``.
        what: the model in words.
        peak_bytes: the activation peak of a step: the most during forward and backward, less what was there before,
            the gradients among it, to which the step adds; ``None`` where it was not measured.
        error: of the whole gradient, relative to a plain step's with the same random numbers, after a few steps, in
            which a level that adapts has done so; ``None`` where it was not measured, or the way drops other elements
            than torch's layers do.
        seconds, plain_seconds: of steps in this way, and of plain ones in turn.
        does_not_apply: why the way is none for this model; empty otherwise.
        failure: what went wrong; empty otherwise.
        commit: that this was measured with.
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

    @property
    def ratio(self) -> float | None:
        """A step's time over the plain one's of the same round, the median over rounds; ``None`` where not timed."""
        return median_ratio(self.seconds, self.plain_seconds) if self.seconds else None


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
    """

    machine: Machine
    device: str
    seed: int = 0
    cells: list[Cell] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def cell(self, subject: str, way: str) -> Cell | None:
        """Of a model, trained in a way."""
        return next((one for one in self.cells if (one.subject, one.way) == (subject, way)), None)

    @property
    def subjects(self) -> list[str]:
        """Those of which there are cells, in order."""
        return list(dict.fromkeys(cell.subject for cell in self.cells))

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> SystemResults:
        """From what ``dataclasses.asdict`` made of one."""
        fields = dict(content)
        return cls(
            machine=Machine(**fields.pop("machine")), cells=[Cell(**cell) for cell in fields.pop("cells")], **fields
        )
