"""``Identity``: the name of a saved tensor, the same from step to step."""

from __future__ import annotations

from typing import NamedTuple, Self

from actcore import SavedTensor


class Identity(NamedTuple):
    """A saved tensor's name, which stays the same from step to step.

    Attributes:
        module: path of the module whose forward saved it; empty for the model itself.
        operator: the call that saved it.
        role: what it was to the call.
        occurrence: how many of the same module, operator and role were saved before in the forward.
    """

    module: str
    operator: str
    role: str
    occurrence: int

    @classmethod
    def of(cls, saved: SavedTensor) -> Self:
        return cls(saved.module, saved.operator, saved.role, saved.occurrence)

    def __str__(self) -> str:
        again = f" {self.occurrence + 1}" if self.occurrence else ""
        return f"{self.module or '(model)'}: {self.operator} {self.role}{again}"
