"""``Measurement``: what each quantised tensor's rounding does to the gradient, at each width."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Self

from integrations._utils.checked_json import read_entry
from integrations.planner.sensitivity.identity import Identity

_WIDTHS = 8  # 1 to 8 bits


@dataclass(frozen=True)
class Sensitivity:
    """One stored copy: a tensor, or several that are views of one storage and share its copy.

    Attributes:
        identities: of the saved tensors that it serves.
        numel: elements that are stored.
        energies: expected squared rounding error, summed over the elements, with 1 to 8 bits.
        costs: expected squared change of all parameters' gradients, with 1 to 8 bits; empty where it was not measured.
        sizes: bytes with 1 to 8 bits, bounds included.
        why: the reason why the costs are unknown; empty where they are known.
    """

    identities: tuple[Identity, ...]
    numel: int
    energies: tuple[float, ...]
    costs: tuple[float, ...]
    sizes: tuple[int, ...]
    why: str = ""


@dataclass(frozen=True)
class Measurement:
    """What the backward passes of one or more steps have told.

    Attributes:
        tensors: one entry for each stored copy.
        gradient: squared norm of the gradient, summed over the parameters' edges in the graph.
    """

    tensors: tuple[Sensitivity, ...]
    gradient: float

    @property
    def finite(self) -> bool:
        """Whether it can be used. It cannot if a gradient overflowed, as when a GradScaler searches for its scale."""
        values = [self.gradient, *(value for tensor in self.tensors for value in (*tensor.costs, *tensor.energies))]
        return all(map(math.isfinite, values))

    def plain(self) -> dict[str, Any]:
        """The measurement as plain values."""
        tensors = [
            {
                "identities": [list(identity) for identity in tensor.identities],
                "numel": tensor.numel,
                "energies": list(tensor.energies),
                "costs": list(tensor.costs),
                "sizes": list(tensor.sizes),
                "why": tensor.why,
            }
            for tensor in self.tensors
        ]
        return {"tensors": tensors, "gradient": self.gradient}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Self:
        """The measurement that ``plain`` returned.

        Raises:
            KeyError, TypeError, ValueError: something is missing, of another type, or not for each of 1 to 8 bits.
        """
        found = read_entry(cls, plain)
        for tensor in found.tensors:
            if not tensor.identities or tensor.numel < 0 or any(size < 0 for size in tensor.sizes):
                raise ValueError(
                    f"a measurement must name tensors, of 0 elements and bytes or more, got {tensor!r:.80}"
                )
            if not len(tensor.energies) == len(tensor.sizes) == _WIDTHS or len(tensor.costs) not in (0, _WIDTHS):
                raise ValueError(f"a measurement must have numbers for each of 1 to {_WIDTHS} bits, got {tensor!r:.80}")
        return found


def compute_mean(measurements: Sequence[Measurement]) -> Measurement:
    """The mean of measurements. For a tensor that only some of them have, the mean of those."""
    seen: dict[tuple[Identity, ...], list[Sensitivity]] = {}
    for measurement in measurements:
        for tensor in measurement.tensors:
            seen.setdefault(tensor.identities, []).append(tensor)
    return Measurement(tuple(map(_mean, seen.values())), fmean(measurement.gradient for measurement in measurements))


def _mean(found: Sequence[Sensitivity]) -> Sensitivity:
    last = found[-1]
    known = [tensor for tensor in found if tensor.costs]
    return Sensitivity(
        last.identities,
        last.numel,
        _means(tensor.energies for tensor in found),
        _means(tensor.costs for tensor in known),
        last.sizes,
        "" if known else last.why,
    )


def _means(rows: Iterable[Sequence[float]]) -> tuple[float, ...]:
    return tuple(map(fmean, zip(*rows, strict=True)))
