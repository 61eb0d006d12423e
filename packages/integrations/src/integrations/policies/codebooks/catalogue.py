"""The activation functions that ``fewbit`` knows: torch's call, their parameters, and what their derivative is.

A piecewise linear function has a derivative of a few exact levels. That of a smooth one is replaced by steps, fitted to
it ("Few-bit backward", Novikov et al., ICML 2023); where it is even, the steps are of ``|x|``, twice as many of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class FewBitFunction:
    """A scalar function, applied to each element.

    Attributes:
        name: the function's name in ``actcore.stepwise``.
        call: ``call(x, *parameters)``, torch's own values and gradients.
        defaults: name -> default of each parameter, in torch's order.
        piecewise: whether it is piecewise linear, its derivative a few levels, exactly.
        even: whether its derivative is an even function of ``x``, for any parameters.
    """

    name: str
    call: Callable[..., Tensor]
    defaults: Mapping[str, float] = field(default_factory=dict)
    piecewise: bool = False
    even: bool = False


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _squared_relu(x: Tensor) -> Tensor:
    return F.relu(x).square()


_ALL = (
    FewBitFunction("relu", F.relu, piecewise=True),
    FewBitFunction("leaky_relu", F.leaky_relu, {"negative_slope": 0.01}, piecewise=True),
    FewBitFunction("threshold", F.threshold, {"threshold": 0.0, "value": 0.0}, piecewise=True),
    FewBitFunction("hardsigmoid", F.hardsigmoid, piecewise=True),
    FewBitFunction("hardtanh", F.hardtanh, {"min_val": -1.0, "max_val": 1.0}, piecewise=True),
    FewBitFunction("relu6", F.relu6, piecewise=True),
    FewBitFunction("hardshrink", F.hardshrink, {"lambd": 0.5}, piecewise=True),
    FewBitFunction("softshrink", F.softshrink, {"lambd": 0.5}, piecewise=True),
    FewBitFunction("celu", F.celu, {"alpha": 1.0}),
    FewBitFunction("elu", F.elu, {"alpha": 1.0}),
    FewBitFunction("gelu", F.gelu),
    FewBitFunction("gelu_tanh", _gelu_tanh),
    FewBitFunction("hardswish", F.hardswish),
    FewBitFunction("logsigmoid", F.logsigmoid),
    FewBitFunction("mish", F.mish),
    FewBitFunction("selu", F.selu),
    FewBitFunction("sigmoid", torch.sigmoid, even=True),
    FewBitFunction("silu", F.silu),
    FewBitFunction("softplus", F.softplus, {"beta": 1.0, "threshold": 20.0}),
    FewBitFunction("softsign", F.softsign, even=True),
    FewBitFunction("tanh", torch.tanh, even=True),
    FewBitFunction("tanhshrink", F.tanhshrink, even=True),
    FewBitFunction("quick_gelu", _quick_gelu),
    FewBitFunction("squared_relu", _squared_relu),
)

FUNCTIONS: Mapping[str, FewBitFunction] = MappingProxyType({function.name: function for function in _ALL})
"""Name -> function: 8 piecewise linear ones and 16 whose derivative is fitted."""
