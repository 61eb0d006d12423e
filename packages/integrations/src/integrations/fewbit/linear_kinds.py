"""Which modules are linear layers, torch's and others', and the layer with a sketch that takes a module's place.

Layers of other libraries are told by the module and the name of their class, so that nothing is imported for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

from integrations._utils.layer_replacement import take_over
from integrations.fewbit.modules import RandomizedConv1D, RandomizedLinear
from integrations.fewbit.util import convert_linear

_GEOMETRIC = ("torch_geometric.nn.dense.linear", "Linear")
_TRANSPOSED = ("transformers.pytorch_utils", "Conv1D")


def is_linear(module: nn.Module) -> bool:
    """Whether a module is a linear layer, or a kind of one."""
    return isinstance(module, nn.Linear) or _place(module) in (_GEOMETRIC, _TRANSPOSED)


def why_kept(module: nn.Module) -> str:
    """Why a linear layer cannot have a sketch; empty where it can."""
    if isinstance(module, LazyModuleMixin) or any(is_lazy(parameter) for parameter in module.parameters()):
        return "its parameters have no shapes yet; call the model once before convert"
    known = type(module) is nn.Linear or _place(module) in (_GEOMETRIC, _TRANSPOSED)
    return "" if known else f"{type(module).__name__} is a subclass of Linear"


def with_sketch(module: nn.Module, options: Mapping[str, Any]) -> nn.Module:
    """The layer that keeps a sketch of its input, with the very parameters of a linear layer that can have one.

    Args:
        options: ``RandomizedLinear``'s.

    Raises:
        TypeError, ValueError: an option is refused.
    """
    place: dict[str, Any] = {"device": torch.device("meta")}  # without memory, and without drawing weights
    found: Any = module
    layer: nn.Module
    if _place(module) == _GEOMETRIC:
        has_bias = found.bias is not None
        layer = RandomizedLinear(found.in_channels, found.out_channels, bias=has_bias, **place, **options)
    elif _place(module) == _TRANSPOSED:
        layer = RandomizedConv1D(found.nf, found.nx, **place, **options)
    else:
        return convert_linear(module, RandomizedLinear, **options)
    take_over(layer, module)
    if hasattr(module, "reset_parameters"):  # as the module draws them, whose very parameters these are
        layer.__dict__["reset_parameters"] = found.reset_parameters
    return layer


def _place(module: nn.Module) -> tuple[str, str]:
    return type(module).__module__, type(module).__name__
