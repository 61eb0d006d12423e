"""``ModelRef`` and ``InModel``: what lies in a model knows it without keeping it.

What a model holds, and holds the model, is a cycle: ``del model`` would free no memory until Python's garbage collector
comes by, and on a GPU the next allocation fails before that.
"""

from __future__ import annotations

import weakref
from typing import Any, ClassVar, Self

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

    def __init__(self, model: nn.Module) -> None:
        self._model = ModelRef(model)
        self._given: weakref.ref[Self] | None = None
        self._kept: nn.Module | None = None

    @property
    def model(self) -> nn.Module:
        """Whose it is."""
        return self._model()

    def for_user(self) -> Self:
        """The object that the user gets: the same one for as long as he has it."""
        found = None if self._given is None else self._given()
        if found is None:
            found = object.__new__(type(self))
            found.__dict__ = self.__dict__
            found._kept = self.model
            self._given = weakref.ref(found)
        return found

    def __reduce_ex__(self, protocol: Any) -> Any:
        own = None if self._kept is None else self._kept.__dict__.get(self.PLACE)
        if isinstance(own, InModel) and own.__dict__ is self.__dict__:
            return _given_by, (self._kept, self.PLACE)
        return super().__reduce_ex__(protocol)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_given": None, "_kept": self._kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._kept = state.pop("_kept")
        self.__dict__.update(state)


def _given_by(model: nn.Module, place: str) -> InModel:
    """What the user of a model's copy gets."""
    found: InModel = model.__dict__[place]
    return found.for_user()
