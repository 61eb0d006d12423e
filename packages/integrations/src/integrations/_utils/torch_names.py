"""Names that torch need not have: a table of them, and what stands for one that is missing."""

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
    """A private name of torch.

    Args:
        path: where torch has it.
        feature: what needs it.
        spared: whether the feature works without it.
    """

    path: str
    feature: str
    spared: bool

    @property
    def is_there(self) -> bool:
        """Whether this torch has it. Imports its module."""
        try:
            self.get()
        except ImportError:
            return False
        return True

    @property
    def why(self) -> str:
        """The message for a missing name."""
        return (
            f"{self.feature} needs {self.path}, which torch {torch.__version__} does not have: the name is private, "
            "and any version of torch may remove it; use a version from 2.10 on that has it"
        )

    def get(self) -> Any:
        """The object that torch has under the name.

        Raises:
            ImportError: the name is missing.
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
                if error.name != module:  # torch itself misses another module
                    raise
                raise ImportError(self.why) from None
        return value


NAMES: dict[str, Name] = {}
"""All names that are used, by their paths."""


def noted(path: str, feature: str, *, spared: bool) -> Name:
    """A name that is added to the table."""
    name = NAMES[path] = Name(path, feature, spared)
    return name


def bound(path: str, feature: str, without: Any = _RAISES) -> Any:
    """The object that torch has under a path. If it is missing: ``without``, or else a ``Missing``."""
    name = noted(path, feature, spared=without is not _RAISES)
    try:
        return name.get()
    except ImportError:
        return without if name.spared else Missing(name)


def later(path: str, feature: str, without: Any = _RAISES) -> Callable[[], Any]:
    """A function that returns the same, for a module that takes long to import. If the name is missing and ``without``
    is not given, the function raises ``ImportError``."""
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
    """Stands for a missing name: to call it, to look into it, and to ask whether something is an instance of it
    raises."""

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
        """A class may derive from it, so that its module can be imported; no object of that class can be made."""
        return (type("Missing", (), {"__new__": self._raise}),)
