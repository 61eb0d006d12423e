"""The stages by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from bench.gpu import build, kernels, models, sanitize, search, tests
from bench.gpu.cases import Case
from bench.gpu.place import Place


@dataclass(frozen=True)
class Stage:
    """A stage.

    Attributes:
        name: on the command line.
        what: it does, in words.
        seconds: that it may take, of a command's ten minutes.
        cases: that it runs, in this order.
        at_once: how many cases run beside each other on a GPU; in a dry run one at a time.
    """

    name: str
    what: str
    seconds: float
    cases: Callable[[Place], list[Case]]
    at_once: int = 1

    def workers(self, place: Place) -> int:
        """How many cases run beside each other there."""
        return self.at_once if place.device == "cuda" and not place.dry else 1


STAGES: Mapping[str, Stage] = MappingProxyType(
    {
        stage.name: stage
        for stage in (
            Stage("build", "versions, ceilings of copy and matmul, the build and its self-check", 420, build.cases),
            Stage("tests", "the tests that take a GPU", 300, tests.cases, at_once=6),
            Stage("sanitize", "compute-sanitizer over every operator", 420, sanitize.cases, at_once=3),
            Stage("kernels", "every codec as a fraction of a copy", 240, kernels.cases),
            Stage("models", "a training step of whole models in every way", 530, models.cases),
            Stage("search", "the largest batch within 16 GiB", 530, search.cases),
        )
    }
)
