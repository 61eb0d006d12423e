"""``ReachableState``: the state that a model's forward can get at, so that a trial run leaves no trace."""

from __future__ import annotations

import dis
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from itertools import islice
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import Tensor, nn

from integrations._utils.torch_internals import kept_for_all_modules
from integrations.capture.state_snapshot import (
    NOTHING,
    Cached,
    Drawn,
    Held,
    Mapping,
    Sequence,
    Set,
    Snapshot,
    cell,
    class_name,
    defaults,
    global_name,
    partial_arguments,
    slot,
)

# Functions, classes and globals of these libraries are not searched: a forward reaches none of the model's state there.
# The last ones run the training around it.
_LIBRARIES = frozenset(sys.stdlib_module_names) | {"actcore", "functorch", "integrations", "numpy", "scipy", "torch"}
_LIBRARIES |= {"_pytest", "accelerate", "datasets", "ipykernel", "IPython", "lightning", "pytest", "pytorch_lightning"}
_LIBRARIES |= {"ray", "rich", "tqdm", "wandb"}

# Instances of these modules of the standard library hold anything.
_HOLDERS = frozenset({"_thread", "argparse", "collections", "types"})

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, range, slice, BuiltinFunctionType})
_ATOMS |= {torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format}

_LONG = 10_000  # a longer container of plain values is data, not state

_CACHED = type(lru_cache(lambda: None))
_TORCHS_OWN = frozenset(vars(nn.Module()))  # attributes that every module has

# Python calls these without naming them.
_IMPLICIT = frozenset({"__init__", "__post_init__", "__call__", "__enter__", "__exit__", "__getattr__", "forward"})

_this = threading.current_thread


class ReachableState:
    """What a forward can get at from its model, as it is now; ``restore`` puts it back.

    *Near* are the model's modules with their attributes and hooks, the containers and objects that these hold, and what
    hooks close over. *Far* are the globals that the code of the forwards, of the hooks and of what they call names,
    attributes of their classes, and what is reached from there. Near things are put back whole, unless other threads
    run, which may be what changed them; far ones only in what is a tensor or holds one.

    Args:
        model: whose forward is tried.
        given: what it is called with, beside tensors: objects such as a cache of keys and values, which are near.

    Attributes:
        modules: the model's own, and others that were found near; where no other thread runs, far ones, too.
        alone: whether no other thread runs that might change what is found.
    """

    def __init__(self, model: nn.Module, given: Iterable[Any] = ()) -> None:
        self.modules: list[nn.Module] = []
        self.alone = all(_only_shows(one) for one in threading.enumerate() if one != _this())
        self._own = set(map(id, model.modules()))
        self._found: list[tuple[bool, Snapshot]] = []  # whether it is near
        self._names: set[tuple[int, str]] = set()
        self._seen: dict[int, Any] = {}
        self._classes: list[type] = []
        self._used: set[str] = set(_IMPLICIT)  # attributes that the code names
        self._near: list[Any] = [*model.modules(), *given]
        self._far: list[Any] = []
        self._walk()
        self._near += kept_for_all_modules()
        self._walk()

    def tensors(self) -> Iterator[tuple[Held, Callable[[Held], object]]]:
        """The tensors that the forward can get at, those in tuples as a tuple, each with a function that puts another
        in its place: the near ones, and the far ones if no other thread runs."""
        for near, found in self._found:
            if near or self.alone:
                yield from found.tensors()

    def restore(self) -> None:
        """Puts back all that has changed since, even if putting back something raises."""
        changed, failures = [found for _, found in reversed(self._found)], list[BaseException]()
        try:
            changed[:0] = self._new_names()
        except BaseException as error:
            failures.append(error)
        for found in changed:
            try:
                found.restore()
            except BaseException as error:  # an interrupt, too: the rest is put back first
                failures.append(error)
        if failures:
            raise next((error for error in failures if not isinstance(error, Exception)), failures[-1])

    def _new_names(self) -> list[Snapshot]:
        """Return attributes of classes that the code names and that were not there before."""
        found: list[Snapshot] = []
        for owner in self._classes:
            for name in self._used.intersection(vars(owner)):
                if (id(owner), name) not in self._names:
                    new = class_name(owner, name)
                    new.value = NOTHING
                    found.append(new)
        return found

    # ---- the walk ----

    def _walk(self) -> None:
        """Searches what is queued, near things first, and what names lead to from there, until nothing new is found."""
        while self._near or self._far:
            while self._near or self._far:
                near = bool(self._near)
                self._visit((self._near if near else self._far).pop(), near)
            for owner in self._classes:
                for name in self._used.intersection(vars(owner)):
                    self._bind(owner, name)

    def _visit(self, found: Any, near: bool) -> None:
        kind = type(found)
        if kind in _ATOMS or id(found) in self._seen or issubclass(kind, Tensor):
            return
        self._seen[id(found)] = found
        whole = near and self.alone
        if issubclass(kind, (dict, list, deque, set)):
            if not _is_data(found):
                holder: Any = Mapping if issubclass(kind, dict) else Set if issubclass(kind, set) else Sequence
                self._hold(holder(found, whole), near)
        elif issubclass(kind, (tuple, frozenset)):
            self._wait(found, near)
        elif kind is FunctionType:
            self._visit_function(found, near)
        elif kind is MethodType:
            self._wait((found.__self__, found.__func__), near)
        elif kind in (staticmethod, classmethod):
            self._wait((found.__func__,), near)
        elif kind is property:
            self._wait((found.fget, found.fset), near)
        elif kind is CellType:
            self._hold(cell(found, whole), near)
        elif kind is _CACHED:
            self._found.append((near, Cached(found)))
            self._wait((found.__wrapped__,), near)
        elif kind is torch.Generator:
            self._found.append((near, Drawn(found)))
        elif issubclass(kind, type):
            self._visit_class(found)
        elif issubclass(kind, nn.Module):
            self._visit_module(found, kind, near)
        elif not issubclass(kind, ModuleType):
            self._visit_object(found, kind, near, whole)

    def _visit_module(self, found: nn.Module, kind: type, near: bool) -> None:
        near = near or id(found) in self._own
        if near or self.alone:
            self.modules.append(found)
        attributes = Mapping(vars(found), whole=near)
        self._seen[id(vars(found))] = vars(found)
        self._found.append((near, attributes))
        for name, value in vars(found).copy().items():
            if name in _TORCHS_OWN and issubclass(type(value), (dict, set)) and id(value) not in self._seen:
                self._seen[id(value)] = value
                self._hold((Mapping if issubclass(type(value), dict) else Set)(value, whole=True), near)
        self._wait(attributes.values, near)
        self._wait((kind,), near=False)

    def _visit_object(self, found: Any, kind: type, near: bool, whole: bool) -> None:
        package = _package(kind.__module__)
        if issubclass(kind, partial):
            self._hold(partial_arguments(found, whole), near)
            self._wait((found.func, found.keywords), near)
        elif issubclass(kind, (WeakKeyDictionary, WeakValueDictionary)):
            self._wait((found.data,), near)
        elif package in ("actcore", "integrations"):
            self._wait((_get_attributes(found).get("forward"),), near)
        elif _holds_anything(kind.__module__) and not issubclass(kind, torch.utils.data.Dataset):
            self._wait((_get_attributes(found),), near)
            for descriptor in _get_slots(kind):
                self._hold(slot(found, descriptor, whole), near)
            self._wait((kind,), near=False)

    def _visit_function(self, found: FunctionType, near: bool) -> None:
        self._wait((found.__closure__, found.__kwdefaults__, found.__dict__ or None), near)
        self._hold(defaults(found), near)
        if _is_library(found.__globals__.get("__name__")):
            return
        names = _names_in(found.__code__)
        self._used |= names.attributes
        for chain in names.globals:
            space = found.__globals__
            for name in chain:
                self._bind(space, name)
                value = space.get(name)
                if not isinstance(value, ModuleType) or _is_library(value.__name__):
                    break
                space = vars(value)

    def _visit_class(self, found: type) -> None:
        if _is_library(found.__module__):
            return
        self._classes.append(found)
        for name, value in vars(found).copy().items():
            if issubclass(type(value), (dict, list, set, deque)) and not _is_special(name):
                self._wait((value,), near=False)
        self._wait(found.__bases__, near=False)

    def _bind(self, space: Any, name: str) -> None:
        if (id(space), name) not in self._names:
            self._names.add((id(space), name))
            found = class_name(space, name) if isinstance(space, type) else global_name(space, name)
            self._hold(found, near=False)

    def _hold(self, found: Any, near: bool) -> None:
        """Notes something, and goes on with what it holds."""
        self._found.append((near, found))
        self._wait(found.values if hasattr(found, "values") else (found.value,), near)

    def _wait(self, found: Iterable[Any], near: bool) -> None:
        (self._near if near else self._far).extend(one for one in found if type(one) not in _ATOMS)


class _Names(NamedTuple):
    """What code names: globals, each with the attributes that follow directly, and other attributes."""

    globals: frozenset[tuple[str, ...]]
    attributes: frozenset[str]


@lru_cache(maxsize=1 << 14)
def _names_in(code: CodeType) -> _Names:
    """The names in a function's code, and in that of the functions in it."""
    chains: set[tuple[str, ...]] = set()
    attributes: set[str] = set()
    chain: tuple[str, ...] = ()
    for instruction in dis.get_instructions(code):
        operation = instruction.opname
        if operation in ("LOAD_GLOBAL", "STORE_GLOBAL", "LOAD_NAME"):
            chain = (instruction.argval,)
            chains.add(chain)
        elif operation in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR"):
            attributes.add(instruction.argval)
            if chain:
                chain = (*chain, instruction.argval)
                chains.add(chain)
        else:
            chain = ()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = _names_in(constant)
            chains |= inner.globals
            attributes |= inner.attributes
    return _Names(frozenset(chains), frozenset(attributes))


def _is_data(container: Any) -> bool:
    """Whether a container is so long that it must be data: numbers, words, or rows of them."""
    if len(container) < _LONG:
        return False
    try:
        first = list(islice(dict.values(container) if isinstance(container, dict) else iter(container), 8))
    except RuntimeError:  # another thread writes to it
        return True
    rows = (one if type(one) is tuple else (one,) for one in first)
    return all(type(part) in _ATOMS for row in rows for part in row)


def _get_attributes(found: Any) -> dict[str, Any]:
    """An object's dictionary, read without the object's own ``__getattribute__``."""
    if issubclass(type(found), threading.local):
        attributes = vars(found)  # of this thread
    else:
        try:
            attributes = object.__getattribute__(found, "__dict__")
        except AttributeError:
            return {}
    return attributes if isinstance(attributes, dict) else {}


def _get_slots(kind: type) -> Iterator[MemberDescriptorType]:
    for base in kind.__mro__:
        for value in vars(base).values():
            if isinstance(value, MemberDescriptorType):
                yield value


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _package(module: Any) -> str:
    return module.partition(".")[0] if isinstance(module, str) else ""


def _holds_anything(module: Any) -> bool:
    """Whether instances of a class of that Python module are searched: not of a library, but for what holds tensors."""
    return not _is_library(module) or _package(module) in _HOLDERS or module.startswith("torch.distributions.")


def _only_shows(thread: threading.Thread) -> bool:
    """Return whether a thread keeps a progress bar or line fresh. Such threads touch nothing of a model's."""
    return type(thread).__module__.startswith(("tqdm.", "rich.", "integrations."))


def _is_library(module: Any) -> bool:
    return _package(module) in _LIBRARIES
