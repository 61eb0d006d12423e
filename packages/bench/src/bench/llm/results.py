"""``LlmResults``: everything ``python -m bench llm`` found, with what is needed to repeat it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from bench.machine import Machine


@dataclass(frozen=True)
class Trained:
    """A subject in a way.

    Attributes:
        subject: its name.
        way: in words.
        peak: bytes of a step beyond what was there before, gradients among them; ``None`` where not measured.
        gradients: bytes of these.
        error: of the whole gradient, relative.
        loss_error: of the loss, absolute.
        seconds: of each step, in turn with those of the subject's other ways.
        failure: why it has not been measured; empty otherwise.
        commit: that this was measured with.
    """

    subject: str
    way: str
    peak: int | None = None
    gradients: int = 0
    error: float = 0.0
    loss_error: float = 0.0
    seconds: list[float] = field(default_factory=list)
    failure: str = ""
    commit: str = ""

    def times(self, plain: Trained) -> float:
        """A step's time over that of another way: the median of the ratios of rounds."""
        return median(one / other for one, other in zip(self.seconds, plain.seconds, strict=True))


@dataclass(frozen=True)
class LlmResults:
    """What ``python -m bench llm`` found.

    Attributes:
        machine: where and with what.
        rounds: of timed steps.
        cells: of every subject in every way, the subject's first way first.
        seconds: that it took.
    """

    machine: Machine
    rounds: int
    cells: list[Trained] = field(default_factory=list)
    seconds: float = 0.0

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> LlmResults:
        """From what ``dataclasses.asdict`` made of one."""
        fields = dict(content)
        cells = [Trained(**entry) for entry in fields.pop("cells")]
        return cls(machine=Machine(**fields.pop("machine")), cells=cells, **fields)
