"""The layers that ``convert`` exchanges beside activations: linear layers for those with a sketch, and norms for those
that save their output.

Layers of other libraries are told by the module and the name of their class, so that nothing is imported for them.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

from integrations._utils.layer_replacement import take_over
from integrations.fewbit.functional.norms import normalize
from integrations.fewbit.modules import RandomizedConv1D, RandomizedLinear
from integrations.fewbit.modules.norms import EPSILONS, LayerNorm, RMSNorm, RoundedRMSNorm, SharedNorm
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


_TORCH: dict[type[nn.Module], type[SharedNorm]] = {nn.LayerNorm: LayerNorm, nn.RMSNorm: RMSNorm}
_NAMES = ("RMSNorm", "T5LayerNorm")
"""How the names of transformers' classes end that compute Llama's norm, most of them."""
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a norm of a sample, or a class of another library that is called like one."""
    return isinstance(module, tuple(_TORCH)) or (type(module).__name__.endswith(_NAMES) and not module._modules)


def sharing_kind(module: nn.Module) -> type[SharedNorm] | str:
    """The class that saves its output and computes what this norm does, bit for bit; or why there is none.

    A class of another library is told by its name and believed by its values: the sources of a dozen models have norms
    of one name that compute different things.
    """
    if isinstance(module, SharedNorm):
        return f"{type(module).__name__} saves its output already"
    if "forward" in module.__dict__:
        return "its forward was replaced"
    kind = _TORCH.get(type(module))
    if kind is not None:
        return kind
    if _is_timms(module):
        return LayerNorm
    name = type(module).__name__
    if isinstance(module, tuple(_TORCH)):
        base = next(base.__name__ for base in _TORCH if isinstance(module, base))
        whole = f"{type(module).__module__}.{name}" if name == base else name
        return f"{whole} is a subclass of {base}"
    if _is_rounded_rms_norm(module):
        return RoundedRMSNorm
    return f"{name} computes another norm than Llama's"


def _is_timms(module: nn.Module) -> bool:
    """Whether it is timm's subclass whose forward is torch's, unless it was built with fast norms on."""
    kind = type(module)
    return (kind.__module__, kind.__name__) == ("timm.layers.norm", "LayerNorm") and not getattr(
        module, "_fast_norm", True
    )


def _is_rounded_rms_norm(module: nn.Module) -> bool:
    weight = module._parameters.get("weight")
    epsilons = [value for name in EPSILONS if (value := module.__dict__.get(name)) is not None]
    if set(module._parameters) != {"weight"} or module._buffers or weight is None or weight.dim() != 1:
        return False
    if len(epsilons) != 1 or not isinstance(epsilons[0], float) or epsilons[0] < 0:
        return False
    if len(inspect.signature(module.forward).parameters) != 1:  # a gate, for one
        return False
    generator = torch.Generator().manual_seed(0)
    # Rows that epsilon decides, that it half decides, and that it does not; outputs up to some hundreds.
    sizes = torch.tensor([0.0, 0.01 * epsilons[0] ** 0.5, epsilons[0] ** 0.5, 1.0, 100.0])
    x = sizes[:, None] * torch.randn(len(sizes), *weight.shape, generator=generator)
    other = 100 * torch.randn(weight.shape, generator=generator)
    return all(_agrees(module, x.to(dtype), other.to(dtype), epsilons[0]) for dtype in _DTYPES)


def _agrees(module: nn.Module, x: Tensor, weight: Tensor, eps: float) -> bool:
    """Whether it computes Llama's norm with this weight. The module itself is not touched."""
    twin = copy.copy(module)
    twin.__dict__.update(_parameters={"weight": nn.Parameter(weight, requires_grad=False)})
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        *_, expected = normalize(x, weight, None, "rounded_rms_norm", tuple(weight.shape), eps)
        try:
            found = twin.forward(x)
        except Exception:  # whatever it needs, it is not this norm
            return False
    return isinstance(found, Tensor) and found.dtype == expected.dtype and torch.equal(found, expected)
