"""``SweepResults``: everything ``python -m bench sweep`` found, with what is needed to repeat it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.machine import Machine
from integrations import LEVELS

ERROR = 0.15
"""The most that the gradient may be off by, relative to its length."""


def easing(level: str) -> dict[str, int]:
    """Options that are tried where a level's error is larger: a bit more for the inputs of linear operators."""
    bits = LEVELS[level].bits
    return {} if bits is None or bits >= 8 else {"bits": bits + 1}


@dataclass(frozen=True)
class Swept:
    """One training step of a model under compression, beside the plain step with the same random numbers.

    Attributes:
        ecosystem, family, name: of a ``Subject``.
        what: the batch, in words.
        parameters: how many.
        original_bytes, stored_bytes: of what autograd alone keeps of the model's forward, by the report.
        rows: of the report: tensors that autograd saved.
        kept: the operator and the reason that keep the most bytes exactly; empty where nothing is kept.
        kept_bytes: those.
        reason: why no fewer bytes are stored, in the report's words; empty where fewer are.
        errors: of the gradient of all parameters, relative to the plain one's length; by step, each of the same
            weights, batch and dropout, with rounding noise of its own.
        where: the parameter whose gradient has the largest part of the squared error, in the first of these steps.
        share: that part.
        eased_errors: as ``errors``, with the options of ``easing``; empty where ``error`` is small enough without.
        eased_bytes: that are stored then.
        repeated: whether two plain steps have the same gradient, bit for bit; what is restored can be no better.
        same_loss: whether the loss under compression is the plain one, bit for bit.
        stepped: whether an optimizer's step on the compressed gradient changed every parameter that has one, to finite
            numbers.
        restored: whether ``restore_model`` left the model as it was: class, attributes and hooks of every module, keys
            of ``state_dict``, and the plain gradient, bit for bit.
        plain_seconds, seconds: of a plain step and of a compressed one, the quickest of them; for the reader's
            orientation, small as the models are.
        failure: what went wrong, where something did; empty otherwise.
        commit: that this was measured with.
    """

    ecosystem: str
    family: str
    name: str
    what: str = ""
    parameters: int = 0
    original_bytes: int = 0
    stored_bytes: int = 0
    rows: int = 0
    kept: str = ""
    kept_bytes: int = 0
    reason: str = ""
    errors: list[float] = field(default_factory=list)
    where: str = ""
    share: float = 0.0
    eased_errors: list[float] = field(default_factory=list)
    eased_bytes: int = 0
    repeated: bool = False
    same_loss: bool = False
    stepped: bool = False
    restored: bool = False
    plain_seconds: float = 0.0
    seconds: float = 0.0
    failure: str = ""
    commit: str = ""

    @property
    def error(self) -> float:
        """The root of the mean square of ``errors``; infinite where there are none."""
        return _root_mean_square(self.errors)

    @property
    def eased_error(self) -> float:
        """The same of ``eased_errors``."""
        return _root_mean_square(self.eased_errors)

    @property
    def ratio(self) -> float:
        """Bytes before over bytes after; 1 where there are none."""
        return self.original_bytes / self.stored_bytes if self.stored_bytes else 1.0

    @property
    def eased_ratio(self) -> float:
        """The same where ``easing`` was tried."""
        return self.original_bytes / self.eased_bytes if self.eased_bytes else 1.0

    @property
    def accurate(self) -> bool:
        """Whether the gradient's error is small enough at the level as it is."""
        return self.error <= ERROR  # a NaN is no pass

    @property
    def smaller(self) -> bool:
        """Whether fewer bytes are stored."""
        return self.stored_bytes < self.original_bytes

    @property
    def shortcomings(self) -> list[str]:
        """What keeps it from passing, in words."""
        if self.failure:
            return [self.failure]
        return list(self._shortcomings())

    def _shortcomings(self) -> Iterator[str]:
        if not self.accurate and not self.eased_error <= ERROR:
            yield f"the gradient's error is {self.error:.3f}, {self.share:.0%} of its square in {self.where}"
        if not self.smaller and not self.reason:
            yield "no fewer bytes are stored, and the report has no reason"
        if not self.rows:
            yield "the report is empty"
        if not self.same_loss:
            yield "the loss differs from the plain one"
        if not self.stepped:
            yield "the optimizer's step left parameters as they were, or not finite"
        if not self.restored:
            yield "restore_model did not bring the plain model back"

    @property
    def passed(self) -> bool:
        """Whether all is as it should be."""
        return not self.shortcomings


def _root_mean_square(values: list[float]) -> float:
    return float((sum(value**2 for value in values) / len(values)) ** 0.5) if values else float("inf")


@dataclass(frozen=True)
class SweepResults:
    """What ``python -m bench sweep`` found.

    Attributes:
        machine: where and with what.
        level: of ``integrations.LEVELS``.
        steps: compressed ones of a subject.
        seed: of weights, batches, dropout and rounding.
        subjects: in the order of ``SUBJECTS``.
        skipped: what was left out, and why.
        seconds: that it took, what was taken up included.
    """

    machine: Machine
    level: str
    steps: int
    seed: int = 0
    subjects: list[Swept] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> SweepResults:
        """From what ``dataclasses.asdict`` made of one."""
        fields = dict(content)
        return cls(
            machine=Machine(**fields.pop("machine")),
            subjects=[Swept(**entry) for entry in fields.pop("subjects")],
            **fields,
        )
