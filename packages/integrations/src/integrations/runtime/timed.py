"""``TimedSession``: a session that measures what storing and restoring each tensor takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from integrations.runtime.repeating.calls import KnownSite
from integrations.runtime.replay import Sites
from integrations.runtime.session import Session
from integrations.tracing.storage.forms import Packed


class TimedSession(Session):
    """A session for a step that is run only to be measured. On a device, it waits before and after each tensor.

    Attributes:
        seconds: by the place of a record in ``records``. A record that shares another's copy has its own.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sites = Sites(self, True)  # the time of deciding is measured, too
        self.seconds: dict[int, float] = {}

    def _pack_fully(self, tensor: Tensor) -> Packed:
        place, packed = self._timed(tensor, lambda: super(TimedSession, self)._pack_fully(tensor))
        return packed if place is None else _Timed(packed, tensor.device, self.seconds, place)

    def pack_held(self, tensor: Tensor, obstacle: str = "", known: KnownSite | None = None) -> Packed:
        """Measures only how long storing takes, since a checkpoint has to hold what it is given."""
        return self._timed(tensor, lambda: super(TimedSession, self).pack_held(tensor, obstacle, known))[1]

    def _timed(self, tensor: Tensor, pack: Callable[[], Packed]) -> tuple[int | None, Packed]:
        """What ``pack`` returns, and the place of the tensor's record if its seconds are noted now."""
        place = len(self.records)
        start = _now(tensor.device)
        packed = pack()
        if len(self.records) != place + 1 or self.records[place].owner:
            return None, packed
        self.seconds[place] = _now(tensor.device) - start
        return place, packed


@dataclass(slots=True, eq=False)
class _Timed:
    """What autograd holds in place of a tensor, with a clock around its unpacking."""

    packed: Packed
    device: torch.device
    seconds: dict[int, float]
    place: int

    def unpack(self) -> Tensor:
        start = _now(self.device)
        tensor = self.packed.unpack()
        self.seconds[self.place] += _now(self.device) - start
        return tensor


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()
