"""The form in which tensors wait that the repetitions of a forward read or make."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from actcore import Kept


class Packed(Protocol):
    """What replaces a tensor while it waits."""

    def unpack(self) -> Tensor:
        """The restored tensor."""


class Later(Protocol):
    """How a recomputed tensor is stored from then on until backward reads it."""

    def store(self, tensor: Tensor, stored: dict[str, Any]) -> Packed:
        """Stores the tensor. ``stored`` belongs to the segment: through it, stored forms of one memory are shared."""


class Keeping(Protocol):
    """How one forward keeps what its repetitions read."""

    def read(self, tensor: Tensor, value: int) -> Packed:
        """What a repetition holds in the place of a tensor that it reads."""


class Exactly:
    """Keeps tensors as they are."""

    def read(self, tensor: Tensor, value: int) -> Packed:
        """The tensor itself, with its version."""
        return Kept.of(tensor)
