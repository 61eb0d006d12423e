"""What ``convert`` knows: which module, and which call, is which activation.

Layers of other libraries are told by the module and the name of their class, so that nothing is imported for them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Recognised:
    """An activation that was recognised.

    Attributes:
        name: of the function, in ``FUNCTIONS``.
        layer: the name of the few-bit layer that computes the same, bit for bit; empty where there is none, and the
            module's own formula is kept, with a derivative of steps.
        arguments: of that layer.
    """

    name: str
    layer: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)


# ---- modules ----

# torch's layers, and what each computes; their few-bit layers have their names and arguments.
_TORCH: Mapping[type[nn.Module], str] = MappingProxyType(
    {
        nn.ReLU: "relu",
        nn.LeakyReLU: "leaky_relu",
        nn.Threshold: "threshold",
        nn.Hardsigmoid: "hardsigmoid",
        nn.Hardtanh: "hardtanh",
        nn.ReLU6: "relu6",
        nn.Hardshrink: "hardshrink",
        nn.Softshrink: "softshrink",
        nn.CELU: "celu",
        nn.ELU: "elu",
        nn.GELU: "gelu",
        nn.Hardswish: "hardswish",
        nn.LogSigmoid: "logsigmoid",
        nn.Mish: "mish",
        nn.SELU: "selu",
        nn.Sigmoid: "sigmoid",
        nn.SiLU: "silu",
        nn.Softplus: "softplus",
        nn.Softsign: "softsign",
        nn.Tanh: "tanh",
        nn.Tanhshrink: "tanhshrink",
    }
)

_GELU, _SILU = Recognised("gelu", "GELU"), Recognised("silu", "SiLU")
_GELU_TANH = Recognised("gelu_tanh", "GELU", {"approximate": "tanh"})
_OTHERS: Mapping[str, Mapping[str, Recognised]] = MappingProxyType(
    {
        "transformers.activations": {
            "GELUActivation": _GELU,
            "GELUTanh": _GELU_TANH,
            "PytorchGELUTanh": _GELU_TANH,
            "NewGELUActivation": Recognised("gelu_tanh"),
            "FastGELUActivation": Recognised("gelu_tanh"),
            "AccurateGELUActivation": Recognised("gelu_tanh"),
            "QuickGELUActivation": Recognised("quick_gelu"),
            "SiLUActivation": _SILU,
            "MishActivation": Recognised("mish", "Mish"),
            "ReLUSquaredActivation": Recognised("squared_relu"),
        },
        "timm.layers.activations": {
            "Swish": Recognised("silu"),
            "Mish": Recognised("mish"),
            "Sigmoid": Recognised("sigmoid", "Sigmoid"),
            "Tanh": Recognised("tanh", "Tanh"),
            "HardSwish": Recognised("hardswish"),
            "GELU": _GELU,
            "GELUTanh": _GELU_TANH,
            "QuickGELU": Recognised("quick_gelu"),
        },
        "timm.layers.activations_me": {
            "SwishMe": Recognised("silu"),
            "MishMe": Recognised("mish"),
            "HardSwishMe": Recognised("hardswish"),
        },
    }
)

# Where a library's layer may hold torch's function, or a formula of its own in its place.
_HELD: Mapping[str, Callable[..., Tensor]] = MappingProxyType({"gelu": F.gelu, "gelu_tanh": F.gelu, "mish": F.mish})


def recognised(module: nn.Module) -> Recognised | None:
    """What a module computes, if that is an activation that has a few-bit form."""
    kind = type(module)
    if kind in _TORCH:
        name = _TORCH[kind]
        if getattr(module, "approximate", "none") == "tanh":
            name = "gelu_tanh"
        return Recognised(name, kind.__name__, _get_arguments(module))
    known = _OTHERS.get(kind.__module__, {}).get(kind.__name__)
    if known is None or not known.layer:
        return known
    held = getattr(module, "act", None)
    if isinstance(held, functools.partial):
        held = held.func
    if held is not None and held is not _HELD.get(known.name):
        return Recognised(known.name)  # which transformers has for gelu_python
    arguments = {name: module.inplace for name in ("inplace",) if getattr(module, name, False)}
    return Recognised(known.name, known.layer, {**known.arguments, **arguments})


def is_activation(module: nn.Module) -> bool:
    """Whether a module is of a class that has a few-bit form."""
    kind = type(module)
    return kind in _TORCH or kind.__name__ in _OTHERS.get(kind.__module__, {})


def likeness(module: nn.Module, calls: bool) -> str:
    """Why a module that looks like an activation is none that has a few-bit form; empty for all others.

    Args:
        calls: whether the calls that it makes are exchanged nevertheless.
    """
    kind = type(module)
    if kind is nn.MultiheadAttention or module._modules:
        return ""
    if kind is nn.GLU:
        return "torch keeps its input alone; fewbit.GLU keeps less, and rounds it at random"
    if kind.__module__ in ("torch.nn.modules.activation", *_OTHERS):
        return f"{kind.__name__} has no few-bit form"
    if kind.__module__.startswith("integrations.fewbit.modules"):
        return f"{kind.__name__} is a few-bit layer already"
    bases = [base.__name__ for base in kind.__mro__[1:] if base in _TORCH]
    if not bases:
        return ""
    kept = f"{kind.__name__} is a subclass of {bases[0]}, and may do something else"
    return f"{kept}; calls that its forward makes are converted" if calls else kept


def _get_arguments(module: nn.Module) -> dict[str, Any]:
    """The arguments with which a layer of torch would be built again."""
    names = inspect.signature(type(module)).parameters
    return {name: getattr(module, name) for name in names if name in vars(module)}


# ---- calls ----

_FUNCTIONALS = (
    *("relu", "leaky_relu", "threshold", "hardsigmoid", "hardtanh", "relu6", "hardshrink", "softshrink", "celu", "elu"),
    *("gelu", "hardswish", "logsigmoid", "mish", "selu", "sigmoid", "silu", "softplus", "softsign", "tanh"),
    "tanhshrink",
)
"""Names that ``torch.nn.functional`` and ``fewbit.functional`` have in common, for functions of the same arguments."""

# The same under other names. A name that ends in an underscore works in place.
_ALIASES: Mapping[Any, str] = MappingProxyType(
    {
        torch.relu: "relu",
        torch.relu_: "relu_",
        Tensor.relu: "relu",
        Tensor.relu_: "relu_",
        torch.threshold: "threshold",
        torch.threshold_: "threshold_",
        torch.celu: "celu",
        torch.celu_: "celu_",
        torch.selu: "selu",
        torch.selu_: "selu_",
        torch.hardshrink: "hardshrink",
        Tensor.hardshrink: "hardshrink",
        torch.sigmoid: "sigmoid",
        Tensor.sigmoid: "sigmoid",
        torch.special.expit: "sigmoid",
        torch.tanh: "tanh",
        Tensor.tanh: "tanh",
        F.leaky_relu_: "leaky_relu_",
        F.hardtanh_: "hardtanh_",
        F.elu_: "elu_",
    }
)

# A plain dictionary, which dynamo can look something up in.
CALLS: Mapping[Any, str] = {**{getattr(F, name): name for name in _FUNCTIONALS}, **_ALIASES}
"""torch's functions -> the name in ``fewbit.functional``."""
