"""Finds the first saved tensor with a NaN or an infinity: looked for on the device, read when asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from actcore import FLOATS, SavedTensor
from integrations.planner.sensitivity.identity import Identity
from integrations.tracing.attention import OPERATOR as ATTENTION


@dataclass(frozen=True)
class NotFinite:
    """What was not finite in one forward.

    Attributes:
        step: number of the forward.
        nan: the first saved tensor with a NaN; ``None`` where there was none.
        infinite: the first with an infinity; ``None`` where there was none.
    """

    step: int
    nan: Identity | None
    infinite: Identity | None

    def __str__(self) -> str:
        named = (("NaN", self.nan), ("infinity", self.infinite))
        listed = "; ".join(f"the first {what} is in {name}" for what, name in named if name is not None)
        return f"Not finite in step {self.step}: {listed}."

    def plain(self) -> dict[str, Any]:
        """Plain values only, for a ``state_dict``."""
        names = {"nan": self.nan, "infinite": self.infinite}
        return {"step": self.step} | {what: None if name is None else [*name] for what, name in names.items()}


class Look:
    """The extremes of each tensor that one forward saves, weights and inputs among them, left on their devices.

    The extremes, not ``isfinite().all()``: they take no memory of the tensor's size, and tell a NaN, which both are
    then, from an infinity.
    """

    def __init__(self, step: int) -> None:
        self.step = step
        self._extremes: list[tuple[SavedTensor, Tensor]] = []

    def at(self, saved: SavedTensor, tensor: Tensor) -> None:
        """Looks at a tensor that is saved, without waiting for its device."""
        if tensor.dtype in FLOATS and tensor.numel():
            self._extremes.append((saved, torch.stack(tensor.detach().aminmax())))

    def found(self) -> NotFinite | None:
        """What was not finite; waits for the devices."""
        nan = infinite = None
        for saved, low, high in self._read():
            if math.isnan(low):
                nan = nan or Identity.of(saved)
            # an attention mask's -inf is intended
            elif high == math.inf or (low == -math.inf and saved.operator != ATTENTION):
                infinite = infinite or Identity.of(saved)
        return None if nan is None and infinite is None else NotFinite(self.step, nan, infinite)

    def _read(self) -> Iterator[tuple[SavedTensor, float, float]]:
        """The extremes in the order of saving, with one copy to the host a device."""
        places: dict[torch.device, list[int]] = {}
        for place, (_, extremes) in enumerate(self._extremes):
            places.setdefault(extremes.device, []).append(place)
        values: dict[int, list[float]] = {}
        for here in places.values():
            together = torch.stack([self._extremes[place][1].double() for place in here])
            values.update(zip(here, together.tolist(), strict=True))
        for place, (saved, _) in enumerate(self._extremes):
            low, high = values[place]
            yield saved, low, high
