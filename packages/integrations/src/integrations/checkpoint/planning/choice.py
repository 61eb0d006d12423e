"""``Choice``: the values that one plan keeps, and what that takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from integrations.checkpoint.graphs.entries import fields_of, of_type
from integrations.checkpoint.graphs.graph import Graph
from integrations.checkpoint.graphs.schedule import Schedule


@dataclass(frozen=True)
class Choice:
    """The values to keep, and what follows.

    Attributes:
        mask: bit ``i`` is set where value ``i`` of the graph is kept.
        peak: bytes of the activation peak: of the step's, less those of the parameters' gradients.
        seconds: of the operators that backward repeats, by the model of their times.
        seconds_bound: no choice with such a peak takes fewer.
        held: where checkpoints are nested, bit ``i`` is set where a segment that makes value ``i`` again holds it, as
            in ``Schedule.of``; else ``None``.
    """

    mask: int
    peak: int
    seconds: float
    seconds_bound: float
    held: int | None = None

    def __repr__(self) -> str:
        """Without the masks, which have a digit for every three values of the graph."""
        held = "" if self.held is None else f", held={self.held.bit_count()} values"
        kept = f"kept={self.mask.bit_count()} values"
        return f"Choice(peak={self.peak}, seconds={self.seconds:.3g}, {kept}{held})"

    @property
    def kept(self) -> tuple[int, ...]:
        """Numbers of the values that are kept."""
        return numbers_of(self.mask)

    def schedule(self, graph: Graph) -> Schedule:
        """What it means for each operator."""
        return Schedule.of(graph, self.kept, None if self.held is None else numbers_of(self.held))

    def content(self) -> dict[str, Any]:
        """It as a JSON object, whose numbers stay exact."""
        return {
            "kept": f"{self.mask:x}",
            "held": None if self.held is None else f"{self.held:x}",
            "peak": self.peak,
            "seconds": self.seconds,
            "seconds_bound": self.seconds_bound,
        }

    @classmethod
    def from_content(cls, content: Any) -> Choice:
        """The choice of such a JSON object.

        Raises:
            KeyError, TypeError, ValueError: it is none.
        """
        given = dict(content)
        kept, held = of_type(str, given.pop("kept"), "kept"), of_type(str | None, given.pop("held"), "held")
        return cls(mask=int(kept, 16), held=None if held is None else int(held, 16), **fields_of(cls, given))


def numbers_of(mask: int) -> tuple[int, ...]:
    """The numbers of the bits that are set."""
    return tuple(value for value in range(mask.bit_length()) if mask >> value & 1)


def mask_of(values: Iterable[int]) -> int:
    """These numbers as the bits of one."""
    mask = 0
    for value in values:
        mask |= 1 << value
    return mask
