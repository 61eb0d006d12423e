"""What a model holds, walked by the garbage collector's own account of who refers to whom."""

import gc
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType
from weakref import ReferenceType

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

_ATOMS = (type(None), bool, int, float, complex, str, bytes)
_PASSED = (type, ModuleType, FrameType, BuiltinFunctionType, ReferenceType)


def _referents(found):
    """Of a function its closure and defaults, and not all there is, to which its globals lead."""
    if isinstance(found, FunctionType):
        return [found.__closure__, found.__defaults__, found.__kwdefaults__, found.__dict__]
    if isinstance(found, Tensor):
        return [found.grad] if found.is_leaf else []
    own = getattr(found, "__dict__", None)  # as an object: until it is asked for, its entries lie in the instance
    return [*gc.get_referents(found), own]


def _told(found):
    return (type(found), found) if isinstance(found, _ATOMS) else id(found)


def snapshot(root):
    """Everything that can be reached, each thing with what it refers to."""
    seen, waiting = {}, [root]
    while waiting:
        found = waiting.pop()
        if isinstance(found, (*_ATOMS, *_PASSED)) or id(found) in seen:
            continue
        referents = _referents(found)
        seen[id(found)] = found, referents
        waiting += referents
    return seen


def changes(before):
    """What of a snapshot refers to something else by now, in words."""
    found = []
    for thing, referents in list(before.values()):
        if sorted(map(repr, map(_told, referents))) != sorted(map(repr, map(_told, _referents(thing)))):
            found.append(f"{type(thing).__module__}.{type(thing).__qualname__}: {thing!r:.200}")
    return found


def fake_tensors():
    """Those that somebody holds, anywhere."""
    gc.collect()
    return [found for found in gc.get_objects() if issubclass(type(found), FakeTensor)]
