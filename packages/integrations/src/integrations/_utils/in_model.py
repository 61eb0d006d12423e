"""``ModelRef`` and ``InModel``: for objects that lie in a model and know it without keeping it alive.

An object in a model that held the model would make a cycle: ``del model`` would free no memory until Python's garbage
collector runs, and on a GPU the next allocation would fail before that.
"""

from __future__ import annotations

import weakref
from typing import Any, ClassVar, Self, TypeVar

from torch import nn


class ModelRef:
    """A reference that does not keep its model alive; calling it returns the model. A copy of the reference, pickled or
    not, refers to the model's copy."""

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
                "the model was freed before its forward was called: model.forward and shallow copies do not keep the "
                "model alive; keep a reference to the model itself"
            )
        return model

    @property
    def alive(self) -> nn.Module | None:
        """The model, or ``None`` if it is gone."""
        return self._ref()

    def __reduce__(self) -> tuple[Any, ...]:
        return ModelRef, (self.alive,)


Held = TypeVar("Held", bound="InModel")


class _Gone(nn.Module):
    """Stands for a model that was gone when a reference to it was copied."""


class InModel:
    """An object that lies in a model's dictionary and is also given to the user: as two objects with one ``__dict__``,
    of which the user's keeps the model alive.

    Args:
        model: the model that it lies in.
    """

    PLACE: ClassVar[str]
    """The key in the model's dictionary."""

    __slots__ = ("__dict__", "__weakref__", "_kept")

    _given: weakref.ref[Self] | None = None  # the user's object

    def __init__(self, model: nn.Module) -> None:
        self._model = ModelRef(model)
        self._kept: nn.Module | None = None

    @property
    def model(self) -> nn.Module:
        """The model that it lies in."""
        return self._model()

    def for_user(self) -> Self:
        """The user's object: the same one as long as the user holds it."""
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
    """The user's object for the one in the model. Either may be a copy that is not filled yet."""
    found = None if own._given is None else own._given()
    if found is None:
        found = object.__new__(type(own))
        found.__dict__ = own.__dict__
        found._kept = model
        own._given = weakref.ref(found)
    return found
