"""``Conversion``: the record, in a model, of the layers that were exchanged; and how a summary lists them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from torch import nn


@dataclass(frozen=True)
class Conversion:
    """Which layers of a model were exchanged. It lies in the root module's dictionary and is copied with it.

    Attributes:
        converted: path, and the classes before and after, of each layer that was exchanged.
        kept: path of each layer that was not, and the reason.
    """

    converted: tuple[tuple[str, str, str], ...]
    kept: tuple[tuple[str, str], ...]

    key: ClassVar[str]
    """The key in the model's dictionary."""
    call: ClassVar[str]
    """The call that converts a model, as a user writes it."""
    undo: ClassVar[str]
    """The call that converts it back."""

    def put(self, root: nn.Module) -> None:
        """Puts the record into the model."""
        root.__dict__[self.key] = self

    @classmethod
    def find(cls, model: nn.Module) -> Self | None:
        """The conversion of this very model; ``None`` if it is not converted."""
        found = model.__dict__.get(cls.key)
        return found if isinstance(found, cls) else None

    @classmethod
    def of(cls, model: nn.Module) -> Self:
        """The conversion of a model that must be converted.

        Raises:
            TypeError: ``model`` is not a module.
            ValueError: it is not converted.
        """
        require_module(model)
        found = cls.find(model)
        if found is None:
            raise ValueError(f"{type(model).__name__} is not converted; call {cls.call} first")
        return found

    @classmethod
    def nothing_to_undo(cls, model: nn.Module) -> bool:
        """Return whether a model is not converted, for example because it was converted back.

        Raises:
            TypeError: ``model`` is not a module.
            ValueError: the model is not converted, but a module in it is.
        """
        require_module(model)
        if cls.find(model) is not None:
            return False
        require_no_part(model, cls.key, "converted")
        return True

    @classmethod
    def require_none(cls, model: nn.Module) -> None:
        """Checks that a model is not converted yet.

        Raises:
            TypeError: ``model`` is not a module.
            ValueError: it is converted.
        """
        require_module(model)
        if cls.key in model.__dict__:
            raise ValueError(f"{type(model).__name__} is converted already; call {cls.undo} first to convert it anew")


def require_module(model: object) -> None:
    """Raises ``TypeError`` for what is not a module."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")


def require_no_part(model: nn.Module, key: str, done: str) -> None:
    """Check that no submodule of a model has a key in its ``__dict__``.

    Args:
        model: the model that is to be restored as a whole.
        key: the key.
        done: the state that the key stands for, such as ``"compressed"``.

    Raises:
        ValueError: a submodule has the key.
    """
    for path, module in model.named_modules():
        if path and key in module.__dict__:
            raise ValueError(
                f"{type(model).__name__} is not {done}, but its module {path!r} is; pass that module instead"
            )


def conversion_lines(converted: Mapping[str, tuple[str, str]], kept: Mapping[str, str]) -> list[str]:
    """A line for each pair of classes, with how often, and one for each module that stayed.

    Args:
        converted: path -> class before and after.
        kept: path -> reason.
    """
    pairs = Counter(f"{before} -> {after}" for before, after in converted.values())
    lines = [f"  {count:4} x {pair}" for pair, count in pairs.items()]
    return lines + [f"  {path or '(root)'}: {reason}" for path, reason in kept.items()]
