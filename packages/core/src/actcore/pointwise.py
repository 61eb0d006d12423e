"""The pointwise functions of ``stepwise`` by name, as torch computes them: ``call(x, *parameters)``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

PointwiseFunction: TypeAlias = Callable[..., Tensor]

FUNCTIONS: dict[str, PointwiseFunction] = {
    "relu": torch.relu,
    "leaky_relu": functional.leaky_relu,
    "threshold": lambda x, threshold=0.0, value=0.0: functional.threshold(x, threshold, value),
    "hardsigmoid": functional.hardsigmoid,
    "hardtanh": functional.hardtanh,
    "relu6": functional.relu6,
    "hardshrink": functional.hardshrink,
    "softshrink": functional.softshrink,
    "celu": functional.celu,
    "elu": functional.elu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "hardswish": functional.hardswish,
    "logsigmoid": functional.logsigmoid,
    "mish": functional.mish,
    "selu": functional.selu,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "softplus": functional.softplus,
    "softsign": functional.softsign,
    "tanh": torch.tanh,
    "tanhshrink": functional.tanhshrink,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "squared_relu": lambda x: torch.relu(x).square(),
}

_aten = torch.ops.aten
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def _by(backward: Any, *options: Any) -> PointwiseFunction:
    """The derivative by torch's operator ``backward(gradient, x, ...)``, with these options where none are given."""
    return lambda x, *parameters: backward(torch.ones_like(x), x, *(parameters or options))


def _elu_slope(x: Tensor, alpha: float, scale: float, inner: float) -> Tensor:
    slope: Tensor = _aten.elu_backward(torch.ones_like(x), alpha, scale, inner, False, x)
    return slope


def _quick_gelu_slope(x: Tensor) -> Tensor:
    gate = torch.sigmoid(1.702 * x)
    return gate * (1 + 1.702 * x * (1 - gate))


DERIVATIVES: dict[str, PointwiseFunction] = {
    "relu": _by(_aten.threshold_backward, 0),
    "leaky_relu": lambda x, slope=0.01: _aten.leaky_relu_backward(torch.ones_like(x), x, slope, False),
    "threshold": lambda x, threshold=0.0, value=0.0: _aten.threshold_backward(torch.ones_like(x), x, threshold),
    "hardsigmoid": _by(_aten.hardsigmoid_backward),
    "hardtanh": _by(_aten.hardtanh_backward, -1.0, 1.0),
    "relu6": _by(_aten.hardtanh_backward, 0.0, 6.0),
    "hardshrink": _by(_aten.hardshrink_backward, 0.5),
    "softshrink": _by(_aten.softshrink_backward, 0.5),
    "celu": lambda x, alpha=1.0: _elu_slope(x, alpha, 1.0, 1 / alpha),
    "elu": lambda x, alpha=1.0: _elu_slope(x, alpha, 1.0, 1.0),
    "gelu": _by(_aten.gelu_backward),
    "gelu_tanh": lambda x: _aten.gelu_backward(torch.ones_like(x), x, approximate="tanh"),
    "hardswish": _by(_aten.hardswish_backward),
    "logsigmoid": lambda x: torch.sigmoid(-x),
    "mish": _by(_aten.mish_backward),
    "selu": lambda x: _elu_slope(x, _SELU_ALPHA, _SELU_SCALE, 1.0),
    "sigmoid": lambda x: _aten.sigmoid_backward(torch.ones_like(x), torch.sigmoid(x)),
    "silu": _by(_aten.silu_backward),
    "softplus": _by(_aten.softplus_backward, 1.0, 20.0),
    "softsign": lambda x: (1 + x.abs()).square().reciprocal(),
    "tanh": lambda x: _aten.tanh_backward(torch.ones_like(x), torch.tanh(x)),
    "tanhshrink": lambda x: torch.tanh(x).square(),
    "quick_gelu": _quick_gelu_slope,
    "squared_relu": lambda x: 2 * torch.relu(x),
}
"""Their derivatives, ``call(x, *parameters)``: what autograd computes, without its graph."""

PARAMETERS: dict[str, int] = {
    "leaky_relu": 1,
    "threshold": 2,
    "hardtanh": 2,
    "hardshrink": 1,
    "softshrink": 1,
    "celu": 1,
    "elu": 1,
    "softplus": 2,
}
"""How many parameters a function takes; those that are not here take none."""


def pointwise_function(name: str, parameters: Sequence[float]) -> tuple[PointwiseFunction, PointwiseFunction]:
    """The function of this name and its derivative.

    Raises:
        ValueError: there is none, or it takes another number of parameters.
    """
    if name not in FUNCTIONS:
        raise ValueError(f"function must be one of {', '.join(FUNCTIONS)}, or callable; got {name!r}")
    count = PARAMETERS.get(name, 0)
    if len(parameters) not in (0, count):
        raise ValueError(
            f"parameters of {name} must be {count} numbers, or none for its defaults, got {len(parameters)}"
        )
    return FUNCTIONS[name], DERIVATIVES[name]
