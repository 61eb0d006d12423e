"""Which norm of a model has a form that saves its output, for ``convert``."""

from __future__ import annotations

import copy
import inspect

import torch
from torch import Tensor, nn

from integrations.fewbit.functional.norms import normalize
from integrations.fewbit.modules.norms import EPSILONS, LayerNorm, RMSNorm, RoundedRMSNorm, SharedNorm

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
