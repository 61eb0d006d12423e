"""The pointwise functions of ``stepwise`` by name, as torch computes them: ``call(x, *parameters)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

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
