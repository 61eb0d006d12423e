"""Activations as functions: those of ``torch.nn.functional``, which keep few bits an element for backward.

    from integrations import fewbit
    y = fewbit.functional.gelu(x, bits=3)

Each takes torch's arguments under torch's names and computes torch's values. Without gradients, and for tensors that
are no plain floating-point ones, it *is* torch's function.
"""

from integrations.fewbit.functional.activation import activation
from integrations.fewbit.functional.column_rows import linear_crs
from integrations.fewbit.functional.gates import geglu, glu, reglu, swiglu
from integrations.fewbit.functional.linear import linear_grp, linear_randomized
from integrations.fewbit.functional.norms import layer_norm, rms_norm
from integrations.fewbit.functional.piecewise import (
    hardshrink,
    hardsigmoid,
    hardtanh,
    leaky_relu,
    relu,
    relu6,
    softshrink,
    threshold,
)
from integrations.fewbit.functional.smooth import (
    celu,
    elu,
    gelu,
    hardswish,
    logsigmoid,
    mish,
    quick_gelu,
    selu,
    sigmoid,
    silu,
    softplus,
    softsign,
    squared_relu,
    tanh,
    tanhshrink,
)
from integrations.fewbit.functional.stepwise import stepwise
from integrations.policies.codebooks.options import Options

__all__ = [
    "Options",
    "activation",
    "celu",
    "elu",
    "geglu",
    "gelu",
    "glu",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "layer_norm",
    "leaky_relu",
    "linear_crs",
    "linear_grp",
    "linear_randomized",
    "logsigmoid",
    "mish",
    "quick_gelu",
    "reglu",
    "relu",
    "relu6",
    "rms_norm",
    "selu",
    "sigmoid",
    "silu",
    "softplus",
    "softshrink",
    "softsign",
    "squared_relu",
    "stepwise",
    "swiglu",
    "tanh",
    "tanhshrink",
    "threshold",
]
