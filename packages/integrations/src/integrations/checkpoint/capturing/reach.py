"""``Reach``: the state that a model's forward can get at, so that a trial run of it leaves no trace."""

from __future__ import annotations

import gc
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as all_modules
from torch.nn.utils import parametrize

# Their functions, classes and globals are not looked through, and a forward reaches nothing of a model's there: the
# libraries below, and what runs a training around it, perhaps in threads of its own.
_LIBRARIES = frozenset(sys.stdlib_module_names) | {"actcore", "functorch", "integrations", "numpy", "scipy", "torch"}
_LIBRARIES |= {"_pytest", "accelerate", "datasets", "ipykernel", "IPython", "lightning", "pytest", "pytorch_lightning"}
_LIBRARIES |= {"ray", "rich", "tqdm", "wandb"}

# Of the standard library's instances, these are made to hold what one likes.
_HOLDERS = frozenset({"argparse", "collections", "types"})

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, range, slice, BuiltinFunctionType})
_ATOMS |= {torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, torch.Generator}

# What may be new because something was imported, which happens once.
_IMPORTED = (ModuleType, FunctionType, type)

_CACHED = type(lru_cache(lambda: None))

# Python calls these without that their names are in the code that makes it.
_IMPLICIT = frozenset({"__init__", "__post_init__", "__call__", "__enter__", "__exit__", "__getattr__", "forward"})

_NOTHING: Any = object()  # in the place of a value where there is none


class Reach:
    """What a forward can get at from its model, as it is now; ``restore`` puts it back.

    These are the model's modules with their attributes and hooks, the containers and objects that these hold, what
    functions close over, and of classes and globals what the code of the forwards, of the hooks and of what they call
    has names for. The elements of tensors are not among it, nor are the attributes of objects of torch's own classes
    other than modules.

    Args:
        model: whose forward is tried.

    Attributes:
        modules: all that were found, the model's and others.
    """

    def __init__(self, model: nn.Module) -> None:
        self.modules: list[nn.Module] = []
        self._mappings: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._sequences: list[tuple[Any, list[Any]]] = []
        self._sets: list[tuple[set[Any], set[Any]]] = []
        self._cells: list[tuple[CellType, Any]] = []
        self._slots: list[tuple[Any, str, Any]] = []
        self._names: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        self._caches: list[tuple[Any, int]] = []
        self._seen: dict[int, Any] = {}
        self._spaces: dict[int, type | dict[str, Any]] = {}  # classes, and the globals of modules
        self._used: set[str] = set(_IMPLICIT)  # names that code uses
        self._waiting: list[Any] = [model]
        self._walk()
        hooks = (hooks for name, hooks in vars(all_modules).items() if name.startswith("_global_"))
        self._waiting += [parametrize._cache, *(one for one in hooks if isinstance(one, dict))]
        self._walk()

    def tensors(self) -> Iterator[tuple[Any, Any, Tensor]]:
        """The tensors that modules have, as parameters, buffers and other attributes, wherever containers hold them:
        an RNN has its weights in a list, too. Each comes with its container, and its key or place there."""
        holders = (holder for one in self.modules for holder in (vars(one), one._parameters, one._buffers))
        theirs = {id(value) for holder in holders for value in holder.values() if isinstance(value, Tensor)}
        for mapping, before in self._mappings:
            yield from ((mapping, key, value) for key, value in before.items() if id(value) in theirs)
        for sequence, items in self._sequences:
            yield from ((sequence, place, value) for place, value in enumerate(items) if id(value) in theirs)

    def restore(self) -> None:
        """Puts back what has changed since."""
        for mapping, before in self._mappings:
            _restore_mapping(mapping, before)
        for sequence, items in self._sequences:
            if len(sequence) != len(items) or any(map(_differ, sequence, items)):
                sequence.clear()
                sequence.extend(items)
        for found, members in self._sets:
            if found != members:
                found.clear()
                found.update(members)
        for cell, content in self._cells:
            if _differ(_content(cell), content):
                if content is _NOTHING:
                    del cell.cell_contents
                else:
                    cell.cell_contents = content
        for owner, name, value in (*self._slots, *self._names.values()):
            _restore_name(owner, name, value)
        for space in self._spaces.values():
            names = vars(space) if isinstance(space, type) else space
            for name in self._used.intersection(names):
                if (id(space), name) not in self._names and not isinstance(names[name], _IMPORTED):
                    _restore_name(space, name, _NOTHING)
        for function, misses in self._caches:
            if function.cache_info().misses != misses and _holds_tensors(function):
                function.cache_clear()

    # ---- the walk ----

    def _walk(self) -> None:
        """Visits what waits, and what names lead to from there, until nothing is new."""
        while self._waiting:
            while self._waiting:
                self._visit(self._waiting.pop())
            for space in list(self._spaces.values()):
                names = vars(space) if isinstance(space, type) else space
                for name in self._used.intersection(names):
                    self._bind(space, name, names[name])

    def _visit(self, found: Any) -> None:
        kind = type(found)
        if kind in _ATOMS or id(found) in self._seen or issubclass(kind, Tensor):
            return
        self._seen[id(found)] = found
        if issubclass(kind, dict):
            self._note_mapping(found)
        elif issubclass(kind, (list, deque)):
            self._sequences.append((found, list(found)))
            self._wait_for(found)
        elif issubclass(kind, set):
            self._sets.append((found, set(found)))
            self._wait_for(found)
        elif issubclass(kind, (tuple, frozenset)):
            self._wait_for(found)
        elif kind is FunctionType:
            self._visit_function(found)
        elif kind is MethodType:
            self._waiting += [found.__self__, found.__func__]
        elif kind in (staticmethod, classmethod):
            self._waiting.append(found.__func__)
        elif kind is property:
            self._wait_for((found.fget, found.fset))
        elif kind is CellType:
            self._cells.append((found, _content(found)))
            self._wait_for(() if _content(found) is _NOTHING else (found.cell_contents,))
        elif kind is _CACHED:
            self._caches.append((found, found.cache_info().misses))
            self._waiting.append(found.__wrapped__)
        elif issubclass(kind, type):
            self._visit_class(found)
        elif issubclass(kind, ModuleType):
            if not _is_library(found.__name__):
                self._spaces[id(found)] = vars(found)
        else:
            self._visit_object(found, kind)

    def _visit_object(self, found: Any, kind: type) -> None:
        package = _package(kind.__module__)
        if issubclass(kind, partial):
            self._wait_for((found.func, found.args, found.keywords))
        if issubclass(kind, nn.Module):
            self.modules.append(found)
            self._waiting.append(found.__dict__)
        elif package in ("actcore", "integrations"):
            self._waiting.append(vars(found).get("forward") if hasattr(found, "__dict__") else None)
            return
        elif package in _LIBRARIES - _HOLDERS or issubclass(kind, torch.utils.data.Dataset):
            return
        else:
            self._waiting.append(getattr(found, "__dict__", None))
            for name in _slots_of(kind):
                value = getattr(found, name, _NOTHING)
                self._slots.append((found, name, value))
                self._waiting.append(value)
        self._waiting.append(kind)

    def _note_mapping(self, found: dict[Any, Any]) -> None:
        keys = _kind_of(found).keys(found)
        self._mappings.append((found, {key: dict.__getitem__(found, key) for key in keys}))
        self._wait_for(dict.values(found))

    def _visit_function(self, found: FunctionType) -> None:
        self._wait_for((found.__closure__, found.__defaults__, found.__kwdefaults__, found.__dict__ or None))
        module = found.__globals__.get("__name__", "")
        if not _is_library(module):
            self._spaces[id(found.__globals__)] = found.__globals__
            self._used.update(_names_in(found.__code__))

    def _visit_class(self, found: type) -> None:
        if not _is_library(found.__module__):
            self._spaces[id(found)] = found
            # What an instance changes in its class is a container there, or has a name that the code uses.
            for name, value in list(vars(found).items()):
                if issubclass(type(value), (dict, list, set, deque)) and not _is_special(name):
                    self._waiting.append(value)
        self._waiting += [base for base in found.__bases__ if not _is_library(base.__module__)]

    def _bind(self, space: Any, name: str, value: Any) -> None:
        key = id(space), name
        if key not in self._names:
            self._names[key] = space, name, value
            self._waiting.append(value)

    def _wait_for(self, found: Iterable[Any]) -> None:
        self._waiting += [one for one in found if type(one) not in _ATOMS]


def _restore_mapping(mapping: dict[Any, Any], before: dict[Any, Any]) -> None:
    """Changes as little as it can: other threads may read there."""
    kind = _kind_of(mapping)
    if not _same_keys(kind.keys(mapping), before):
        kind.clear(mapping)
    for key, value in before.items():
        if dict.get(mapping, key, _NOTHING) is not value:
            kind.__setitem__(mapping, key, value)


def _kind_of(mapping: dict[Any, Any]) -> Any:
    """The class whose methods read and write it, whatever a subclass makes of that."""
    return OrderedDict if isinstance(mapping, OrderedDict) else dict


def _same_keys(keys: Iterable[Any], others: Iterable[Any]) -> bool:
    """Whether they are the very same, in the same order; keys may be tensors, which are not to be compared."""
    keys, others = list(keys), list(others)
    return len(keys) == len(others) and not any(map(_differ, keys, others))


def _restore_name(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, dict):
        if value is _NOTHING:
            owner.pop(name, None)
        elif _differ(owner.get(name, _NOTHING), value):
            owner[name] = value
        return
    own = isinstance(owner, type)
    now = vars(owner).get(name, _NOTHING) if own else getattr(owner, name, _NOTHING)
    if not _differ(now, value):
        return
    put: Callable[..., None] = type.__setattr__ if own else object.__setattr__
    remove: Callable[..., None] = type.__delattr__ if own else object.__delattr__
    if value is _NOTHING:
        remove(owner, name)
    else:
        put(owner, name, value)


def _differ(one: Any, other: Any) -> bool:
    return one is not other


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return _NOTHING


def _holds_tensors(function: Any) -> bool:
    """Whether a cached function's results are or hold tensors."""
    waiting, seen = [one for one in gc.get_referents(function) if one is not function.__wrapped__], set[int]()
    while waiting:
        found = waiting.pop()
        if isinstance(found, Tensor):
            return True
        if id(found) in seen or isinstance(found, (type, ModuleType, FunctionType)):
            continue
        seen.add(id(found))
        if isinstance(found, (dict, list, tuple)) or type(found).__name__ == "_lru_list_elem":
            waiting += gc.get_referents(found)
    return False


def _names_in(code: CodeType) -> Iterator[str]:
    """The names of globals and of attributes that code uses, that of the functions in it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _slots_of(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        names = base.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if not _is_special(name):
                private = name.startswith("__") and not name.endswith("__")
                yield f"_{base.__name__.lstrip('_')}{name}" if private else name


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _package(module: str | None) -> str:
    return (module or "").partition(".")[0]


def _is_library(module: str | None) -> bool:
    return _package(module) in _LIBRARIES
