"""Find the Q-layers of layers. Q-layers of other libraries are imported once a model has a layer of that library."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from torch import nn

from integrations._utils.running_module import public_name
from integrations.qmodules import layers
from integrations.qmodules.layers.base import QLayer

_OF_TORCH: Mapping[type[nn.Module], type[QLayer]] = MappingProxyType(
    {
        layer.counterpart: layer
        for name in layers.__all__
        if issubclass(layer := getattr(layers, name), QLayer) and layer is not QLayer
    }
)

_OF_LIBRARIES = MappingProxyType({"torch_geometric": "integrations.qmodules.layers.pyg"})
"""By top-level package of a library: the module with its Q-layers."""


def find_q_layer(kind: type[nn.Module]) -> type[QLayer] | None:
    """Return the Q-layer of exactly this class; ``None`` if there is none."""
    if kind in _OF_TORCH:
        return _OF_TORCH[kind]
    module = _OF_LIBRARIES.get(kind.__module__.partition(".")[0])
    if module is None:
        return None
    found: type[QLayer] | None = import_module(module).Q_LAYERS.get(kind)
    return found


def why_none(kind: type[nn.Module]) -> str:
    """Return why a class has no Q-layer; empty for one that has."""
    if find_q_layer(kind) is not None:
        return ""
    base = next((base for base in kind.__mro__[1:] if find_q_layer(base) is not None), None)
    if base is not None:
        name = kind.__name__ if kind.__name__ != base.__name__ else f"{kind.__module__}.{kind.__qualname__}"
        return f"{name} is a subclass of {public_name(base)}"
    full = public_name(kind)
    return f"there is no Q-layer of {kind.__name__ if full.startswith('torch.') else full}"


def name_of(kind: type[nn.Module]) -> str:
    """Return a layer's name for a summary: without ``torch.nn``, and with the package of any other library."""
    return kind.__name__ if kind in _OF_TORCH else public_name(kind)
