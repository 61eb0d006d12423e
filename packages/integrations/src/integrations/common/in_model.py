"""``ModelRef`` and ``InModel``: what lies in a model knows it without keeping it.

What a model holds, and holds the model, is a cycle: ``del model`` would free no memory until Python's garbage collector
comes by, and on a GPU the next allocation fails before that.
"""

from __future__ import annotations

import weakref
from typing import Any, ClassVar, Self, TypeVar

from torch import nn


class ModelRef:
    """A reference that does not keep its model; called, it returns it. A copy of it, or one that is unpickled, is of
    the model's copy."""

    def __init__(self, model: nn.Module | None) -> None:
        self._ref = weakref.ref(_Gone() if model is None else model)

    def __call__(self) -> nn.Module:
        """The model.

        Raises:
            ReferenceError: it is gone.
        """
        model = self._ref()
        if model is None:
            raise ReferenceError(
                "the model must be there while its forward is called, and it is gone: neither model.forward nor a "
                "shallow copy of the model keeps it; hold on to the model itself"
            )
        return model

    @property
    def alive(self) -> nn.Module | None:
        """The model, or ``None``."""
        return self._ref()

    def __reduce__(self) -> tuple[Any, ...]:
        return ModelRef, (self.alive,)


Held = TypeVar("Held", bound="InModel")


class _Gone(nn.Module):
    """Stands for a model that was gone when a reference to it was copied."""


class InModel:
    """What lies in a model's dictionary and is given to its user: as two objects with one ``__dict__``, of which the
    user's keeps the model.

    Args:
        model: whose it is.
    """

    PLACE: ClassVar[str]
    """The key in the model's dictionary."""

    __slots__ = ("__dict__", "__weakref__", "_kept")

    _given: weakref.ref[Self] | None = None  # what the user has

    def __init__(self, model: nn.Module) -> None:
        self._model = ModelRef(model)
        self._kept: nn.Module | None = None

    @property
    def model(self) -> nn.Module:
        """Whose it is."""
        return self._model()

    def for_user(self) -> Self:
        """The object that the user gets: the same one for as long as he has it."""
        return _given_by(self, self.model)

    def __reduce_ex__(self, protocol: Any) -> Any:
        own = None if self._kept is None else self._kept.__dict__.get(self.PLACE)
        if isinstance(own, InModel) and own.__dict__ is self.__dict__:
            return _given_by, (own, self._kept)
        return super().__reduce_ex__(protocol)

    def __getstate__(self) -> dict[str, Any]:
        own = {name: value for name, value in self.__dict__.items() if name != "_given"}
        return {**own, "_kept": self._kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._kept = state.pop("_kept")
        self.__dict__.update(state)


def _given_by(own: Held, model: nn.Module) -> Held:
    """What the user gets for what lies in the model, either of which may be a copy that is still to be filled."""
    found = None if own._given is None else own._given()
    if found is None:
        found = object.__new__(type(own))
        found.__dict__ = own.__dict__
        found._kept = model
        own._given = weakref.ref(found)
    return found
