"""A function whose arguments and closure hold stored forms where they held tensors. It is rebuilt for each call.

These are rebuilt: tuples, named tuples, lists and dictionaries, ``functools.partial``, functions with their cells and
default arguments, bound methods. The originals are left as they are. Whatever holds no replaced tensor is used itself,
so that only the tensors' places change.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from integrations.tracing.tensors import tensors_in

# Most of what a call holds is of these types, which hold no tensors; a module's tensors are its owner's.
_EMPTY = frozenset(
    {*(bool, int, float, str, type, type(None), torch.device, torch.dtype), ModuleType, BuiltinFunctionType}
)

# What was rebuilt already for one call, by the identity of what builds it.
Built = dict[int, Any]


class Place(ABC):
    """What replaces a value until a call needs it."""

    @abstractmethod
    def build(self, built: Built) -> Any:
        """The value, or an equivalent one."""


class Finder(Protocol):
    """Is told of the tensors that are found."""

    def found(self, tensor: Tensor) -> Place | None:
        """What replaces the tensor; ``None`` to leave it there."""

    def out_of_reach(self, tensor: Tensor, holder: object) -> None:
        """A tensor is in an object that cannot be rebuilt."""


def build(value: Any, built: Built) -> Any:
    """The value for a call. A tensor that was in two places is one tensor again."""
    if not isinstance(value, Place):
        return value
    if id(value) not in built:
        built[id(value)] = value.build(built)
    return built[id(value)]


@dataclass(frozen=True, eq=False)
class _Items(Place):
    make: Callable[[list[Any]], Any]
    items: tuple[Any, ...]

    def build(self, built: Built) -> Any:
        return self.make([build(item, built) for item in self.items])


@dataclass(frozen=True, eq=False)
class _Mapping(Place):
    kind: type[dict[Any, Any]]
    items: Mapping[Any, Any]

    def build(self, built: Built) -> Any:
        return self.kind((key, build(item, built)) for key, item in self.items.items())


@dataclass(frozen=True, eq=False)
class _Partial(Place):
    function: Any
    args: Any
    keywords: Any

    def build(self, built: Built) -> Any:
        function, args, keywords = (build(part, built) for part in (self.function, self.args, self.keywords))
        return functools.partial(function, *args, **keywords)


@dataclass(frozen=True, eq=False)
class _Method(Place):
    function: Any
    owner: Any

    def build(self, built: Built) -> Any:
        return MethodType(build(self.function, built), build(self.owner, built))


class _Function(Place):
    """A function to rebuild. It keeps no reference to the original, whose cells hold the tensors."""

    def __init__(self, function: FunctionType, cells: tuple[Any, ...], parts: tuple[Any, Any, Any]) -> None:
        self._code, self._globals, self._name = function.__code__, function.__globals__, function.__name__
        self._qualname, self._module, self._doc = function.__qualname__, function.__module__, function.__doc__
        self._annotations = function.__annotations__
        self._cells = cells  # the function's own cells, and places for the contents of others
        self._defaults, self._keywords, self._attributes = parts

    def build(self, built: Built) -> Any:
        cells = tuple(CellType(build(cell, built)) if isinstance(cell, Place) else cell for cell in self._cells)
        function = FunctionType(self._code, self._globals, self._name, build(self._defaults, built), cells or None)
        function.__kwdefaults__ = build(self._keywords, built)
        function.__dict__.update(build(self._attributes, built))
        function.__qualname__, function.__module__, function.__doc__ = self._qualname, self._module, self._doc
        function.__annotations__ = self._annotations
        return function


class Rebuilder:
    """Searches what a call holds, once."""

    def __init__(self, finder: Finder) -> None:
        self._finder = finder
        self._known: dict[int, Any] = {}  # by identity: what it becomes
        self._open: set[int] = set()  # what is being searched
        self.circular = False  # whether something holds itself: a copy would hold the original

    def visit(self, value: Any) -> Any:
        """The value itself if nothing in it is replaced; else what rebuilds it."""
        if type(value) in _EMPTY or isinstance(value, nn.Module):
            return value
        key = id(value)
        if key in self._open:
            self.circular = True
            return value
        if key not in self._known:
            self._open.add(key)
            self._known[key] = self._visit(value)
            self._open.remove(key)
        return self._known[key]

    def _visit(self, value: Any) -> Any:
        kind = type(value)
        if isinstance(value, Tensor):
            return self._finder.found(value) or value
        if kind in (tuple, list) or (isinstance(value, tuple) and hasattr(kind, "_make")):
            items = [self.visit(item) for item in value]
            return value if _same(items, value) else _Items(getattr(kind, "_make", kind), tuple(items))
        if kind in (dict, OrderedDict):
            changed = {name: self.visit(item) for name, item in value.items()}
            return value if _same(changed.values(), value.values()) else _Mapping(kind, changed)
        if kind is functools.partial:
            parts = [self.visit(part) for part in (value.func, value.args, value.keywords)]
            return value if _same(parts, (value.func, value.args, value.keywords)) else _Partial(*parts)
        if kind is MethodType:
            parts = [self.visit(part) for part in (value.__func__, value.__self__)]
            return value if _same(parts, (value.__func__, value.__self__)) else _Method(*parts)
        if kind is FunctionType:
            return self.visit_function(value)
        self._look_into(value)
        return value

    def visit_function(self, function: FunctionType, names: frozenset[str] = frozenset()) -> Any:
        """The same for a function. Of its cells, only those of these names are searched, if it has any of them."""
        cells, found = function.__closure__ or (), function.__code__.co_freevars
        chosen = names.intersection(found) or found
        inside = tuple(
            self._visit_cell(cell) if name in chosen else cell for name, cell in zip(found, cells, strict=True)
        )
        given = (function.__defaults__, function.__kwdefaults__, function.__dict__)
        parts = tuple(self.visit(part) for part in given)
        if _same(inside, cells) and _same(parts, given):
            return function
        return _Function(function, inside, parts)

    def _visit_cell(self, cell: CellType) -> Any:
        try:
            content = cell.cell_contents
        except ValueError:  # the cell is empty
            return cell
        found = self.visit(content)
        return cell if found is content else found

    def _look_into(self, value: Any) -> None:
        attributes = getattr(value, "__dict__", None)
        for held in (attributes if isinstance(attributes, dict) else (), value):
            for tensor in tensors_in(held):
                self._finder.out_of_reach(tensor, value)


def _same(one: Any, other: Any) -> bool:
    return all(a is b for a, b in zip(one, other, strict=True))
