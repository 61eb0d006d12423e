"""What is found of a subject, as a record of ``--record FILE`` has it, and what keeps it from passing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from integrations import LEVELS

ERROR = 0.15
"""The most that the gradient may be off by, relative to its length."""


def easing(level: str) -> dict[str, int]:
    """Options that are tried where a level's error is larger: a bit more for the inputs of linear operators."""
    bits = LEVELS[level].bits
    return {} if bits is None or bits >= 8 else {"bits": bits + 1}


@dataclass(frozen=True)
class Swept:
    """One subject: a training step under compression, beside the plain step with the same random numbers.

    Attributes:
        ecosystem, family, name: of the subject.
        what: the batch, in words.
        parameters: how many.
        original_bytes: that autograd alone keeps of the forward, by the report.
        stored_bytes: that are kept instead.
        rows: of the report: tensors that autograd saved.
        kept: the operator and the reason that keep the most bytes exactly.
        kept_bytes: those.
        why: no fewer bytes are stored, in the report's words; empty where fewer are.
        errors: of the gradient of all parameters, relative, by step, each with noise of its own.
        where: the parameter with the largest part of the squared error in the first step.
        share: that part.
        eased_errors: as errors, with the options of ``easing``; none where errors are small without.
        eased_bytes: that are stored then.
        repeated: whether two plain steps have the same gradient, bit for bit.
        same_loss: whether the loss is the plain one, bit for bit.
        stepped: whether an optimizer changed what has a gradient, to finite numbers.
        restored: whether restore_model left the model as it was, its gradient bit for bit if plain steps repeat.
        plain_seconds: of the quickest plain step.
        seconds: of the quickest compressed one.
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
    why: str = ""
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

    @property
    def error(self) -> float:
        """The root of the mean square of ``errors``; infinite where there are none."""
        return root_mean_square(self.errors)

    @property
    def accurate(self) -> bool:
        """Whether the gradient's error is small enough at the level as it is; a NaN is not."""
        return self.error <= ERROR

    @property
    def shortcomings(self) -> list[str]:
        """What keeps it from passing, in words."""
        return list(self._shortcomings())

    def _shortcomings(self) -> Iterator[str]:
        if not self.accurate and not root_mean_square(self.eased_errors) <= ERROR:
            yield f"the gradient's error is {self.error:.3f}, {self.share:.0%} of its square in {self.where}"
        if self.stored_bytes >= self.original_bytes and not self.why:
            yield "no fewer bytes are stored, and the report has no reason"
        if not self.rows:
            yield "the report is empty"
        if not self.same_loss:
            yield "the loss differs from the plain one"
        if not self.stepped:
            yield "the optimizer's step left parameters as they were, or not finite"
        if not self.restored:
            yield "restore_model did not bring the plain model back"


def root_mean_square(values: list[float]) -> float:
    """Of no values infinite."""
    return float((sum(value**2 for value in values) / len(values)) ** 0.5) if values else float("inf")
