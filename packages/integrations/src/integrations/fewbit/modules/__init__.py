"""Activations as layers: subclasses of torch's, with their arguments and ``bits`` beside them."""

from integrations.fewbit.modules.gates import GEGLU, GLU, ReGLU, SwiGLU
from integrations.fewbit.modules.linear import LinearCRS, LinearGRP, RandomizedLinear
from integrations.fewbit.modules.norms import LayerNorm, RMSNorm
from integrations.fewbit.modules.piecewise import (
    Hardshrink,
    Hardsigmoid,
    Hardtanh,
    LeakyReLU,
    ReLU,
    ReLU6,
    Softshrink,
    Threshold,
)
from integrations.fewbit.modules.smooth import (
    CELU,
    ELU,
    GELU,
    SELU,
    Hardswish,
    LogSigmoid,
    Mish,
    QuickGELU,
    Sigmoid,
    SiLU,
    Softplus,
    Softsign,
    SquaredReLU,
    Tanh,
    Tanhshrink,
)
from integrations.fewbit.modules.user import Activation, Stepwise

__all__ = [
    "CELU",
    "ELU",
    "GEGLU",
    "GELU",
    "GLU",
    "SELU",
    "Activation",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "LayerNorm",
    "LeakyReLU",
    "LinearCRS",
    "LinearGRP",
    "LogSigmoid",
    "Mish",
    "QuickGELU",
    "RandomizedLinear",
    "ReGLU",
    "ReLU",
    "ReLU6",
    "SiLU",
    "Sigmoid",
    "Softplus",
    "Softshrink",
    "Softsign",
    "SquaredReLU",
    "Stepwise",
    "SwiGLU",
    "Tanh",
    "Tanhshrink",
    "Threshold",
]
