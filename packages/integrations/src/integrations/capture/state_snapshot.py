"""Things that can be put back as they were: a mapping, a sequence, a set, a cell, a slot, a name, a cached function, a
generator.

Each is put back *whole*, or only where it is a tensor or holds one, then or now. The rest may be the work of another
thread, or a lasting note of something done once, such as a flag that an operator is registered.
"""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from functools import partial
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor

NOTHING: Any = object()
"""Marks a missing value."""

Held = Tensor | tuple[Any, ...]
"""What is replaced: a tensor; or a tuple as a whole, which cannot be written to."""

_PASSED = (type, ModuleType, FunctionType, MethodType, BuiltinFunctionType, torch.nn.Module, str, bytes, int, float)
_MOST = 1000  # objects that are searched for a tensor
_DEEPEST = 100  # of tuples in tuples so many are searched


class Snapshot(ABC):
    """Something as it was when this object was made."""

    @abstractmethod
    def restore(self) -> None:
        """Puts it back."""

    def tensors(self) -> Iterator[tuple[Held, Callable[[Held], object]]]:
        """The tensors that it holds, and tuples with tensors in them, each with a function that puts another in its
        place."""
        yield from ()


class Mapping(Snapshot):
    """A dictionary of any class; none of the class's own methods is called.

    Args:
        found: the dictionary.
        whole: see above.
        before: a copy of an earlier time, to be put back; ``None``: as the dictionary is now.
    """

    def __init__(self, found: dict[Any, Any], whole: bool, before: dict[Any, Any] | None = None) -> None:
        self._found, self._whole = found, whole
        self._before = _entries(found) if before is None else before
        self._kind: Any = OrderedDict if isinstance(found, OrderedDict) else dict
        ordered = before is None and self._kind is OrderedDict
        self._order = list(self._kind.keys(found)) if ordered else list(self._before)

    @property
    def values(self) -> list[Any]:
        """The values as they were."""
        return list(self._before.values())

    def tensors(self) -> Iterator[tuple[Held, Callable[[Held], object]]]:
        for key, value in self._before.items():
            if _is_held(value):
                yield value, partial(self._kind.__setitem__, self._found, key)

    def restore(self) -> None:
        now, before, kind = _entries(self._found), self._before, self._kind
        changed = {key for key in {**before, **now} if _differ(now.get(key, NOTHING), before.get(key, NOTHING))}
        if not self._whole:
            changed = {key for key in changed if holds_tensor(now.get(key)) or holds_tensor(before.get(key))}
        for key in changed:
            if key in before:
                kind.__setitem__(self._found, key, before[key])
            elif key in now:
                kind.__delitem__(self._found, key)
        if self._whole and any(map(_differ, list(kind.keys(self._found)), self._order)):
            kind.clear(self._found)
            for key in self._order:
                kind.__setitem__(self._found, key, before[key])


def _entries(found: dict[Any, Any]) -> dict[Any, Any]:
    """A copy, made at once: another thread may write to the dictionary.

    ``dict.copy`` asks a class that iterates in its own way, such as ``OrderedDict`` and its subclasses, for its keys,
    and for each value through ``__getitem__``, which makes a module in transformers' table of activations.
    """
    if type(found).__iter__ is dict.__iter__:
        return dict.copy(found)
    return dict(list(dict.items(found)))


class Sequence(Snapshot):
    """A list or a deque."""

    def __init__(self, found: Any, whole: bool) -> None:
        self._found, self._whole = found, whole
        self._kind: Any = deque if isinstance(found, deque) else list
        self.values = self._now()

    def _now(self) -> list[Any]:
        return list(self._kind.copy(self._found))  # at once

    def tensors(self) -> Iterator[tuple[Held, Callable[[Held], object]]]:
        for place, value in enumerate(self.values):
            if _is_held(value):
                yield value, partial(self._kind.__setitem__, self._found, place)

    def restore(self) -> None:
        now, items = self._now(), self.values
        known, there = set(map(id, items)), set(map(id, now))
        if not self._whole and not any(id(item) not in there and holds_tensor(item) for item in items):
            items = [item for item in now if id(item) in known or not holds_tensor(item)]
        self.values, self._whole = items, True  # between the two calls below nothing tells any more what was there
        if len(now) != len(items) or any(map(_differ, now, items)):
            self._kind.clear(self._found)
            self._kind.extend(self._found, items)


class Set(Snapshot):
    """A set."""

    def __init__(self, found: set[Any], whole: bool) -> None:
        self._found, self._whole = found, whole
        self.values = list(set.copy(found))

    def restore(self) -> None:
        before = {id(member): member for member in self.values}
        now = {id(member): member for member in set.copy(self._found)}
        for key, member in {**before, **now}.items():
            if (key in before) == (key in now) or not (self._whole or holds_tensor(member)):
                continue
            (set.add if key in before else set.discard)(self._found, member)


class NamedValue(Snapshot):
    """Something that has a value or none, and is read, set and deleted by functions."""

    def __init__(
        self, read: Callable[[], Any], write: Callable[[Any], object], empty: Callable[[], object], whole: bool
    ) -> None:
        self._read, self._write, self._empty, self._whole = read, write, empty, whole
        self.value = read()

    def tensors(self) -> Iterator[tuple[Held, Callable[[Held], object]]]:
        if _is_held(self.value):
            yield self.value, self._write

    def restore(self) -> None:
        now = self._read()
        if now is self.value or not (self._whole or holds_tensor(now) or holds_tensor(self.value)):
            return
        if self.value is NOTHING:
            self._empty()
        else:
            self._write(self.value)


def cell(found: CellType, whole: bool) -> NamedValue:
    """A cell: what a function closes over."""

    def read() -> Any:
        try:
            return found.cell_contents
        except ValueError:  # it is empty
            return NOTHING

    def empty() -> None:
        del found.cell_contents

    return NamedValue(read, lambda value: setattr(found, "cell_contents", value), empty, whole)


def slot(owner: Any, descriptor: Any, whole: bool) -> NamedValue:
    """A slot of an object, by the descriptor of the class that declares it. A subclass may use the same name for
    something else."""

    def read() -> Any:
        try:
            return descriptor.__get__(owner, type(owner))
        except AttributeError:
            return NOTHING

    return NamedValue(read, lambda value: descriptor.__set__(owner, value), lambda: descriptor.__delete__(owner), whole)


def global_name(space: dict[str, Any], name: str) -> NamedValue:
    """A global of a Python module."""
    return NamedValue(
        lambda: space.get(name, NOTHING),
        lambda value: space.__setitem__(name, value),
        lambda: space.pop(name, None),
        whole=False,
    )


def class_name(owner: type, name: str) -> NamedValue:
    """An attribute of a class."""
    return NamedValue(
        lambda: vars(owner).get(name, NOTHING),
        lambda value: type.__setattr__(owner, name, value),
        lambda: type.__delattr__(owner, name),
        whole=False,
    )


def partial_arguments(found: partial[Any], whole: bool) -> NamedValue:
    """The positional arguments of a ``functools.partial``, which is rewritten in place."""

    def write(arguments: Any) -> None:
        partial.__setstate__(found, (found.func, arguments, found.keywords, vars(found)))  # type: ignore[attr-defined]

    return NamedValue(lambda: found.args, write, lambda: None, whole)


def defaults(found: FunctionType) -> NamedValue:
    """The defaults of a function's positional arguments."""
    return NamedValue(
        lambda: found.__defaults__,
        lambda values: setattr(found, "__defaults__", values),
        lambda: None,
        whole=False,
    )


class Cached(Snapshot):
    """A function under ``functools.cache`` or ``lru_cache``. If what it has cached since holds tensors, its whole cache
    is cleared."""

    def __init__(self, function: Any) -> None:
        self._function, self._misses = function, function.cache_info().misses

    def restore(self) -> None:
        if self._function.cache_info().misses == self._misses:
            return
        results = [one for one in gc.get_referents(self._function) if one is not self._function.__wrapped__]
        if any(map(holds_tensor, results)):
            self._function.cache_clear()


class Drawn(Snapshot):
    """The state of a generator."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator, self._state = generator, generator.get_state()

    def restore(self) -> None:
        self._generator.set_state(self._state)


def replaced(found: Any, of: Callable[[Tensor], Tensor], made: dict[int, Any] | None = None) -> Any:
    """A tensor's replacement, or a tuple of the same class with replacements for the tensors in it and in the tuples in
    it. What else there is in a tuple is passed on as it is. ``made`` has by id the tuples that are replaced already."""
    if isinstance(found, Tensor):
        return of(found)
    if not isinstance(found, tuple) or not _is_held(found):
        return found
    made = {} if made is None else made
    if id(found) not in made:
        made[id(found)] = _made_anew(found, [replaced(one, of, made) for one in tuple.__iter__(found)])
    return made[id(found)]


def _made_anew(found: tuple[Any, ...], items: list[Any]) -> tuple[Any, ...]:
    """A tuple of the same class with other items."""
    kind = type(found)
    new = kind(items) if hasattr(kind, "n_sequence_fields") else tuple.__new__(kind, items)  # torch.return_types
    if hasattr(found, "__dict__"):
        vars(new).update(vars(found))
    return new


def _is_held(found: Any) -> bool:
    """Whether something is a tensor, or a tuple with one in it or in the tuples in it, ``_DEEPEST`` deep at most."""
    seen: set[int] = set()
    left = [(found, 0)]
    while left:
        one, depth = left.pop()
        if isinstance(one, Tensor):
            return True
        if isinstance(one, tuple) and id(one) not in seen and depth < _DEEPEST:
            seen.add(id(one))
            left += [(part, depth + 1) for part in tuple.__iter__(one)]
    return False


def holds_tensor(found: Any) -> bool:
    """Whether something is a tensor, or leads to one through what it holds. Modules, functions and classes are not
    searched."""
    waiting, seen = [found], set[int]()
    while waiting and len(seen) < _MOST:
        one = waiting.pop()
        if isinstance(one, Tensor):
            return True
        if one is None or id(one) in seen or isinstance(one, _PASSED):
            continue
        seen.add(id(one))
        waiting += gc.get_referents(one)
    return False


def _differ(one: Any, other: Any) -> bool:
    return one is not other
