"""What becomes of a name that torch need not have: a table of such names, and what stands for one that is gone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, Never

import torch

_RAISES: Any = object()


@dataclass(frozen=True)
class Name:
    """A name of torch that is private.

    Args:
        path: where torch has it.
        feature: what takes it.
        spared: whether the feature does without where it is gone.
    """

    path: str
    feature: str
    spared: bool

    @property
    def is_there(self) -> bool:
        """Whether this torch has it. Imports the module that has."""
        try:
            self.get()
        except ImportError:
            return False
        return True

    @property
    def why(self) -> str:
        """What to say where it is gone."""
        return (
            f"{self.feature} takes {self.path}, which torch {torch.__version__} does not have: the name is private, "
            "and each version of torch may drop it; use one that has it, from 2.10 on"
        )

    def get(self) -> Any:
        """What torch has there.

        Raises:
            ImportError: it is gone.
        """
        value: Any = torch
        parts = self.path.split(".")
        for depth, part in enumerate(parts[1:], 2):
            try:
                value = getattr(value, part)
                continue
            except AttributeError:
                if not isinstance(value, ModuleType) or "__path__" not in vars(value):
                    raise ImportError(self.why) from None
            module = ".".join(parts[:depth])
            try:
                value = import_module(module)
            except ModuleNotFoundError as error:
                if error.name != module:  # which torch itself wants
                    raise
                raise ImportError(self.why) from None
        return value


NAMES: dict[str, Name] = {}
"""All that are used, by their paths."""


def noted(path: str, feature: str, *, spared: bool) -> Name:
    """A name that is in the table from now on."""
    name = NAMES[path] = Name(path, feature, spared)
    return name


def bound(path: str, feature: str, without: Any = _RAISES) -> Any:
    """What torch has there. Where it is gone ``without``, or else a ``Missing``."""
    name = noted(path, feature, spared=without is not _RAISES)
    try:
        return name.get()
    except ImportError:
        return without if name.spared else Missing(name)


def later(path: str, feature: str, without: Any = _RAISES) -> Callable[[], Any]:
    """A function for the same of a module that takes long to import. Where the name is gone and ``without`` is not
    given, it raises ``ImportError``."""
    name = noted(path, feature, spared=True)

    @cache
    def get() -> Any:
        try:
            return name.get()
        except ImportError:
            if without is _RAISES:
                raise
            return without

    return get


class Missing:
    """Stands for a name that is gone: to call it, to look into it, and to ask whether something is of it raises."""

    def __init__(self, name: Name) -> None:
        self._name = name

    def _raise(self, *_: Any, **__: Any) -> Never:
        raise RuntimeError(self._name.why)

    __call__ = __instancecheck__ = __subclasscheck__ = _raise

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # Python asks for these to see what an object is
            raise AttributeError(attribute)
        self._raise()

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type]:
        """A class may derive from it, so that its module can be imported; an object of the class cannot be made."""
        return (type("Missing", (), {"__new__": self._raise}),)
