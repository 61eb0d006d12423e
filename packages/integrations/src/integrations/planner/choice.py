"""``Choice``: the values that one plan keeps, the stores in which values wait, and what that takes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from integrations._utils.checked_json import of_type, read_fields
from integrations.capture.graphs.graph import Graph
from integrations.capture.graphs.schedule import Schedule
from integrations.policies.stores import Store


@dataclass(frozen=True)
class Choice:
    """The values to keep, and what follows from that.

    Attributes:
        mask: bit ``i`` is set if value ``i`` of the graph is kept, as it is or in a store.
        peak: bytes of the activation peak: the step's peak without the parameters' gradients.
        seconds: modelled seconds of repeating operators in backward, and of storing and restoring.
        seconds_bound: a lower bound on ``seconds`` for every choice of this peak.
        held: if checkpoints are nested, bit ``i`` is set if a segment that recomputes value ``i`` holds it, as in
            ``Schedule.of``; else ``None``.
        stores: by value: the store in which it waits, if not as it is; for a recomputed value, the store in which it
            waits once it has been recomputed.
        variance: the predicted square of the gradient's relative error.
        rounded: whether it is a choice of a graph that is ``rounded``.
    """

    mask: int
    peak: int
    seconds: float
    seconds_bound: float
    held: int | None = None
    stores: tuple[tuple[int, Store], ...] = ()
    variance: float = 0.0
    rounded: bool = False

    def __repr__(self) -> str:
        """Leaves out the masks, which have a digit for every three values of the graph."""
        held = "" if self.held is None else f", held={self.held.bit_count()} values"
        kept = f"kept={self.mask.bit_count()} values"
        stores = f", stores={len(self.stores)} values, error={self.error:.3g}" if self.stores else ""
        return f"Choice(peak={self.peak}, seconds={self.seconds:.3g}, {kept}{held}{stores})"

    @property
    def kept(self) -> tuple[int, ...]:
        """The numbers of the values that are kept."""
        return list_numbers(self.mask)

    @property
    def rounds(self) -> bool:
        """Whether a value waits in a form that is not exact, whatever error that is predicted to cause."""
        return any(not store.exact for _, store in self.stores)

    @property
    def fits_any_path(self) -> bool:
        """Whether each value is stored precisely enough for any reader."""
        return all(store.fine for _, store in self.stores)

    @property
    def error(self) -> float:
        """The predicted relative error of the gradient."""
        return math.sqrt(self.variance)

    def schedule(self, graph: Graph) -> Schedule:
        """What the choice means for each operator of its graph."""
        return Schedule.of(graph, self.kept, None if self.held is None else list_numbers(self.held), dict(self.stores))

    def content(self) -> dict[str, Any]:
        """The JSON object of the choice, whose numbers stay exact."""
        return {
            "kept": f"{self.mask:x}",
            "held": None if self.held is None else f"{self.held:x}",
            "peak": self.peak,
            "seconds": self.seconds,
            "seconds_bound": self.seconds_bound,
            "stores": {
                str(store): f"{make_mask(value for value, found in self.stores if found == store):x}"
                for store in dict.fromkeys(store for _, store in self.stores)
            },
            "variance": self.variance,
            "rounded": self.rounded,
        }

    @classmethod
    def from_content(cls, content: Any, values: int) -> Choice:
        """The choice of such a JSON object, for a graph of at most so many values.

        Raises:
            KeyError, TypeError, ValueError: it is not one.
        """
        if not isinstance(content, Mapping):
            raise TypeError(f"choice must be an object, got {content!r:.40}")
        given = dict(content)
        kept, held = of_type(str, given.pop("kept"), "kept"), of_type(str | None, given.pop("held"), "held")
        stores = [
            (value, Store.of(words))
            for words, mask in dict(given.pop("stores")).items()
            for value in list_numbers(_mask_in(of_type(str, mask, "stores"), values))
        ]
        if len(stores) != len(dict(stores)):
            raise ValueError("stores must name each value once")
        return cls(
            mask=_mask_in(kept, values),
            held=None if held is None else _mask_in(held, values),
            stores=tuple(sorted(stores)),
            **read_fields(cls, given),
        )

    @property
    def most(self) -> int:
        """The largest number of a value that it names; -1 for none."""
        named = (self.mask | (self.held or 0)).bit_length() - 1
        return max(named, *(value for value, _ in self.stores), -1)


def _mask_in(text: str, values: int) -> int:
    """The mask that a text is written for. It is bounded before the numbers of its bits are listed, which takes time
    with the square of their count."""
    mask = int(text, 16)
    if mask < 0:
        raise ValueError(f"a choice's values must be bits of a number from 0, got {text!r:.40}")
    if mask.bit_length() > values:
        raise ValueError(f"its choices name values that the graph lacks, which must be among {values}")
    return mask


def list_numbers(mask: int) -> tuple[int, ...]:
    """The numbers of the bits that are set."""
    return tuple(value for value in range(mask.bit_length()) if mask >> value & 1)


def make_mask(values: Iterable[int]) -> int:
    """An integer whose bits are set at these numbers."""
    mask = 0
    for value in values:
        mask |= 1 << value
    return mask
