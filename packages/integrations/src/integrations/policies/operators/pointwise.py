"""Activations, arithmetic and functions of each element.

A nonlinear operator's saved tensor gets exactly the bits that its gradient needs, or so many that the error of its
derivative is bounded, or is kept.
"""

from __future__ import annotations

from integrations.policies.needs import Need, Rule
from integrations.policies.operators.operator import Aten, Effect, Gain, Kernel, Operator, aten

_PRODUCT = Rule(Need.PRODUCT, Need.PRODUCT)
# dy = y dx: a product with the result, and not with something that amplifies its error. In place, the result is the
# input, too.
_OWN_SLOPE = Rule(input=Need.PRODUCT, result=Need.PRODUCT)
# Of a variance 2 (x - mean) / (n - 1). The derivatives of std and norms divide by what may be small: a row of small
# numbers in a group with large ones would be rounded as coarsely as those, and the quotient would make that error
# large.
MOMENT = Rule(Need.MOMENT, Need.MOMENT)
_SATURATING = Rule(input=Need.SATURATING, result=Need.SATURATING, internal=Need.SATURATING)
BOUNDED = Rule(input=Need.BOUNDED, result=Need.BOUNDED)
_SIGN = Rule(input=Need.SIGN, result=Need.SIGN)
_INSIDE = Rule(input=Need.INSIDE, result=Need.INSIDE, internal=Need.INSIDE, why="bounds that are tensors: kept exactly")
_DROPOUT = Rule(internal=Need.MASK, why="dropout needs only its mask")
EXPONENTIAL = Rule(why="exp() and division amplify an error without bound")
JUMPS = Rule(why="the derivative jumps, or is a product of many: kept exactly", jumps=True)

ACTIVATIONS = (
    Operator(
        "gelu",
        _SATURATING,
        (Aten("gelu", Kernel.FUNCTION, steady=True),),
        (Aten("gelu_backward", Kernel.FUNCTION, saved=1),),
        gain=Gain.ONE,
        saturation=(-5.0, 5.0),
    ),
    Operator(
        "silu",
        _SATURATING,
        (Aten("silu", Kernel.FUNCTION, steady=True),),
        (Aten("silu_backward", Kernel.FUNCTION, saved=1),),
        gain=Gain.ONE,
        saturation=(-12.0, 12.0),
    ),
    Operator(
        "mish",
        _SATURATING,
        (Aten("mish", Kernel.FUNCTION, steady=True),),
        (Aten("mish_backward", saved=1),),
        gain=Gain.ONE,
        saturation=(-12.0, 12.0),
    ),
    Operator("softplus", _SATURATING, aten("softplus", Kernel.FUNCTION), gain=Gain.ONE, saturation=(-10.0, 10.0)),
    Operator("elu", _SATURATING, aten("elu", Kernel.FUNCTION), gain=Gain.ONE, saturation=(-10.0, 0.0)),
    Operator("celu", _SATURATING, gain=Gain.ONE, saturation=(-10.0, 0.0)),
    Operator("logsigmoid log_sigmoid", _SATURATING, gain=Gain.ONE, saturation=(-10.0, 10.0)),
    Operator("hardswish", _SATURATING, gain=Gain.ONE, saturation=(-3.0, 3.0), slope_jumps=True),
    Operator(
        "erf", _SATURATING, (Aten("erf", Kernel.FUNCTION, steady=True),), gain=Gain.NARROW, saturation=(-3.5, 3.5)
    ),
    Operator(
        "sigmoid",
        BOUNDED,
        (Aten("sigmoid", Kernel.FUNCTION, steady=True),),
        (Aten("sigmoid_backward", saved=1, role="result"),),
        gain=Gain.NARROW,
        saves_result=True,
    ),
    Operator(
        "tanh",
        BOUNDED,
        (Aten("tanh", Kernel.FUNCTION, steady=True),),
        (Aten("tanh_backward", saved=1, role="result"),),
        gain=Gain.NARROW,
        saves_result=True,
    ),
    Operator("tanhshrink", BOUNDED),
    Operator("relu", _SIGN, backward=(Aten("threshold_backward", saved=1, role="result"),), gain=Gain.ONE),
    Operator("leaky_relu", _SIGN, backward=(Aten("leaky_relu_backward", saved=1),), gain=Gain.ONE),
    Operator("relu6 hardtanh hardsigmoid", _INSIDE, gain=Gain.NARROW),
    Operator("clamp clip clamp_min clamp_max", _INSIDE, gain=Gain.NARROW),
    Operator("threshold hardshrink", _INSIDE, discontinuous=True),
    Operator("softshrink", _INSIDE),
    Operator("selu prelu rrelu", JUMPS),
    Operator("dropout dropout1d dropout2d dropout3d feature_dropout native_dropout", _DROPOUT),
)

_ARITHMETIC = (
    Operator("add radd iadd", aten=aten("add"), nodes="Add", effect=Effect.SUMS, gain=Gain.SUM),
    Operator("sub rsub isub", aten=aten("sub"), nodes="Sub", effect=Effect.SUMS, gain=Gain.SUM),
    Operator("neg", aten=aten("neg"), nodes="Neg", effect=Effect.SCALES, gain=Gain.ONE),
    Operator(
        "mul multiply", _PRODUCT, (Aten("mul", repeated=(0, 1)),), nodes="Mul", effect=Effect.SCALES, gain=Gain.FACTOR
    ),
    Operator("addcmul glu", _PRODUCT, gain=Gain.UNKNOWN),
    Operator(
        "div divide true_divide truediv",
        EXPONENTIAL,
        aten("div"),
        nodes="Div",
        effect=Effect.SCALES,
        gain=Gain.QUOTIENT,
        poles=(1, 0),
    ),
    Operator("addcdiv", poles=(2, 1)),
    Operator("xlogy special_xlogy special_xlog1py", poles=(1, 0)),
    Operator("square", MOMENT, gain=Gain.POWER),
    Operator("pow", MOMENT, gain=Gain.POWER, poles=(0,)),
    Operator("abs", JUMPS, gain=Gain.ONE, compares=True),
    Operator("maximum minimum", nodes="Maximum Minimum", effect=Effect.PICKS, searches=True, compares=True),
    Operator("fmax fmin", searches=True),
    Operator("sign sgn", discontinuous=True, compares=True),
    Operator("round floor ceil trunc fix heaviside floor_divide floordiv remainder mod fmod frac", discontinuous=True),
    Operator("eq equal ne not_equal lt less le less_equal gt greater ge greater_equal", discontinuous=True),
    Operator("logical_and logical_or logical_xor logical_not bernoulli poisson binomial", discontinuous=True),
)

_FUNCTIONS = (
    Operator("exp", _OWN_SLOPE, aten("exp", Kernel.FUNCTION), gain=Gain.UNBOUNDED, saves_result=True),
    Operator("exp2 expm1", _OWN_SLOPE, gain=Gain.UNBOUNDED, saves_result=True),
    Operator("sqrt rsqrt reciprocal", EXPONENTIAL, gain=Gain.UNBOUNDED, saves_result=True, poles=(0,)),
    Operator("log", EXPONENTIAL, aten("log", Kernel.FUNCTION), gain=Gain.UNBOUNDED, poles=(0,)),
    Operator("rpow", EXPONENTIAL, gain=Gain.UNBOUNDED),
    Operator("log2 log10 log1p logit", EXPONENTIAL, poles=(0,)),
    Operator("asin acos acosh atanh", poles=(0,)),
    Operator("sin cos", aten=aten("sin cos", Kernel.FUNCTION), gain=Gain.ONE, smooth=True),
    Operator("sinh cosh atan asinh erfc logaddexp", smooth=True),
)

POINTWISE = (*ACTIVATIONS, *_ARITHMETIC, *_FUNCTIONS)
