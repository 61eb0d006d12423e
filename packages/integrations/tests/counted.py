"""What a process holds at one moment: bytes, objects of this project, entries of its registries and caches, and what
it has opened.

Bytes in use are the measure that is bounded, and not resident memory: the kernel counts whole pages, of which one stays
resident for a single live block in it, so that resident memory wanders with the sizes that came by even where nothing
is held. They are glibc's, and with ``PYTHONMALLOC=malloc`` those of Python's own objects are among them; otherwise
Python takes its objects from arenas that glibc does not know. Objects are counted beside them, since some of few bytes
would take long to be seen; not all can be, for the fast path in C hides those that it makes from the collector.
"""

import ctypes
import gc
import sys
import threading
from collections import Counter
from functools import lru_cache
from pathlib import Path
from types import FunctionType, ModuleType

import torch
from memory_child import live_bytes

_CACHED = type(lru_cache(lambda: None))
OURS = ("actcore", "integrations")


def is_ours(name):
    return isinstance(name, str) and name.partition(".")[0] in OURS


def _modules():
    return [module for name, module in sorted(sys.modules.items()) if is_ours(name) and type(module) is ModuleType]


def _containers():
    """Every container that a module, or a class of it, has, by name."""
    for module in _modules():
        scopes = {module.__name__: vars(module)}
        kinds = [
            kind for kind in vars(module).values() if isinstance(kind, type) and kind.__module__ == module.__name__
        ]
        scopes |= {f"{kind.__module__}.{kind.__qualname__}": vars(kind) for kind in kinds}
        for scope, names in scopes.items():
            for name, value in names.items():
                if (
                    not name.startswith("__")
                    and hasattr(value, "__len__")
                    and not isinstance(value, (str, bytes, type))
                ):
                    yield f"{scope}.{name}", value


def registries():
    """How many entries each has. One that a module imports from another is counted there, too."""
    found = {}
    for name, value in _containers():
        try:
            found[name] = len(value)
        except TypeError:  # such as a tensor without dimensions
            continue
    return found


def caches():
    """How many entries the caches of functions have, wherever they are, by name: closures have some. And how many they
    may have, ``None`` for no bound."""
    sizes, bounds = Counter(), {}
    ours = {id(value) for module in _modules() for value in vars(module).values()}  # functions of torch among them
    for found in gc.get_objects():
        if type(found) is _CACHED and (id(found) in ours or is_ours(getattr(found, "__module__", None))):
            name = f"{found.__module__}.{found.__qualname__}()"
            sizes[name] += found.cache_info().currsize
            bounds[name] = found.cache_info().maxsize
    return dict(sizes), bounds


def objects():
    """How many of our classes' objects there are, by class."""
    found = Counter()
    for one in gc.get_objects():
        kind = type(one)
        if is_ours(kind.__module__):
            found[f"{kind.__module__}.{kind.__qualname__}"] += 1
    return dict(found)


def resident_bytes():
    """Bytes of this process alone that lie in memory."""
    rows = dict(row.split(":", 1) for row in Path("/proc/self/smaps_rollup").read_text("utf-8").splitlines()[1:])
    return sum(int(rows[name].split()[0]) for name in ("Private_Dirty", "Private_Clean")) << 10


def compiled_codes():
    """How many compiled versions dynamo keeps, of all code that it has seen."""
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    codes = {id(one.__code__): one.__code__ for one in gc.get_objects() if type(one) is FunctionType}
    return sum(len(_debug_get_cache_entry_list(code)) for code in codes.values())


def held():
    """All of it, as plain numbers by name, garbage collected and free memory returned first."""
    for _ in range(2):  # a finaliser may make what is garbage again
        gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    sizes, bounds = caches()
    return {
        "bytes": live_bytes(),
        "resident": resident_bytes(),
        "registries": registries(),
        "caches": sizes,
        "cache bounds": bounds,
        "objects": objects(),
        "dynamo": {"compiled versions": compiled_codes() if "torch._dynamo" in sys.modules else 0},
        "opened": {"files": len(list(Path("/proc/self/fd").iterdir())), "threads": threading.active_count()},
        "torch": {"tensors": sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())},
    }
