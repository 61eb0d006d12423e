"""The tensors that an autograd graph holds for backward, found by walking it: an independent count beside reports."""

from collections.abc import Mapping

import torch

from integrations.tracing.tensors import find_storages


def saved_tensors(variable):
    """Those of all nodes of a variable's graph; of tensors that share a storage, the first.

    What hooks have stored is not unpacked: the tensors are those that the stored form is made of, such as an
    ``actcore.Compressed``'s. Nothing is found for what a checkpoint computes again.
    """
    found = {}
    seen, waiting = set(), [variable.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for tensor in held_by(node):
            found.setdefault(tuple(storage._cdata for storage in find_storages(tensor)), tensor)
        waiting += [following for following, _ in node.next_functions]
    return list(found.values())


def saved_bytes(variable):
    """Their bytes. A storage counts as a whole, since a view keeps all of it alive."""
    return sum(storage.nbytes() for tensor in saved_tensors(variable) for storage in find_storages(tensor))


def held_by(node):
    """What a node keeps, as it is stored. Its attributes ``_saved_*`` would run the hooks that unpack it."""
    for name in dir(node):
        if name.startswith("_raw_saved_"):
            raw = getattr(node, name)
            for saved in raw if isinstance(raw, (tuple, list)) else (raw,):
                if saved is not None:
                    yield from tensors_of(saved.data)


def tensors_of(stored):
    """The tensors in a stored form: in containers, and in the attributes of objects but models, functions and torch's
    own, such as a checkpoint's holder."""
    seen, waiting = {}, [stored]
    while waiting:
        value = waiting.pop()
        if isinstance(value, torch.Tensor):
            yield value.detach()
        elif id(value) not in seen:
            seen[id(value)] = value
            waiting += parts_of(value)


def parts_of(value):
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (tuple, list, set, frozenset)):
        return list(value)
    if callable(value) or type(value).__module__.partition(".")[0] in ("builtins", "torch", "weakref"):
        return []
    slots = [base.__dict__.get("__slots__", ()) for base in type(value).__mro__]
    names = [name for names in slots for name in ((names,) if isinstance(names, str) else names)]
    names += getattr(value, "__dict__", ())
    return [getattr(value, name, None) for name in names if name not in ("__dict__", "__weakref__")]
