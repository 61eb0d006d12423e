"""In which form waits what repetitions of a forward read, and what they make."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from actcore import Kept


class Packed(Protocol):
    """What is held in the place of a tensor."""

    def unpack(self) -> Tensor:
        """The tensor, as good as it is stored."""


class Later(Protocol):
    """How a saved tensor that is recomputed is to be stored from then on until it is read."""

    def store(self, tensor: Tensor, stored: dict[str, Any]) -> Packed:
        """Stores it. ``stored`` is the segment's: what is stored of one memory can be shared through it."""


class Keeping(Protocol):
    """How one forward keeps what its repetitions read."""

    def read(self, tensor: Tensor, value: int) -> Packed:
        """What a repetition is to hold in the place of a tensor that it reads."""


class Exactly:
    """Keeps tensors as they are."""

    def read(self, tensor: Tensor, value: int) -> Packed:
        """The tensor itself, with its version."""
        return Kept.of(tensor)
