"""Smooth activations: torch's values, and a derivative of steps that takes a few bits an element.

The method is that of "Few-bit backward" (Novikov et al., ICML 2023). Where the input is NaN or infinite the gradient is
NaN, and so are those of the 1024 elements around it in memory, for which one byte tells it. What the functions take
beside torch's arguments are the keywords of ``Options``. Second derivatives are those of a step function, 0.
"""

from __future__ import annotations

from typing import Unpack

import torch.nn.functional as F
from torch import Tensor

import actcore
from integrations.fewbit.catalogue import FUNCTIONS
from integrations.fewbit.functional.conditions import as_autocast, keeps_few_bits, numbers
from integrations.fewbit.functional.options import (
    DEFAULT_BITS,
    Options,
    Steps,
    check_approximate,
    check_options,
    constant,
    steps_of,
    user_steps,
)
from integrations.fewbit.tables import level_table, table
from integrations.in_place import placed


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False, **options: Unpack[Options]) -> Tensor:
    """``torch.nn.functional.celu``, keeping few bits; each ``alpha`` has steps of its own."""
    return _smooth("celu", input, (alpha,), inplace, options)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False, **options: Unpack[Options]) -> Tensor:
    """``torch.nn.functional.elu``, keeping few bits; each ``alpha`` has steps of its own."""
    return _smooth("elu", input, (alpha,), inplace, options)


def gelu(input: Tensor, approximate: str = "none", **options: Unpack[Options]) -> Tensor:
    """``torch.nn.functional.gelu``, keeping few bits; ``approximate`` is ``"none"`` or ``"tanh"``."""
    check_approximate(approximate)
    return _smooth("gelu" if approximate == "none" else "gelu_tanh", input, (), False, options)


def hardswish(input: Tensor, inplace: bool = False, **options: Unpack[Options]) -> Tensor:
    """``torch.nn.functional.hardswish``, keeping few bits."""
    return _smooth("hardswish", input, (), inplace, options)


def logsigmoid(input: Tensor, **options: Unpack[Options]) -> Tensor:
    """``torch.nn.functional.logsigmoid``, keeping few bits."""
    return _smooth("logsigmoid", input, (), False, options)


def mish(input: Tensor, inplace: bool = False, **options: Unpack[Options]) -> Tensor:
    """``torch.nn.functional.mish``, keeping few bits."""
    return _smooth("mish", input, (), inplace, options)


def quick_gelu(input: Tensor, **options: Unpack[Options]) -> Tensor:
    """``input * sigmoid(1.702 * input)``, keeping few bits."""
    return _smooth("quick_gelu", input, (), False, options)


def selu(input: Tensor, inplace: bool = False, **options: Unpack[Options]) -> Tensor:
    """``torch.nn.functional.selu``, keeping few bits."""
    return _smooth("selu", input, (), inplace, options)


def sigmoid(input: Tensor, **options: Unpack[Options]) -> Tensor:
    """``torch.sigmoid``, keeping few bits, of ``|input|``: the derivative is even."""
    return _smooth("sigmoid", input, (), False, options)


def silu(input: Tensor, inplace: bool = False, **options: Unpack[Options]) -> Tensor:
    """``torch.nn.functional.silu``, keeping few bits."""
    return _smooth("silu", input, (), inplace, options)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0, **options: Unpack[Options]) -> Tensor:
    """``torch.nn.functional.softplus``, keeping few bits; each ``beta`` and ``threshold`` have steps of their own."""
    return _smooth("softplus", input, (beta, threshold), False, options, "aten::softplus")


def softsign(input: Tensor, **options: Unpack[Options]) -> Tensor:
    """``torch.nn.functional.softsign``, keeping few bits, of ``|input|``: the derivative is even."""
    return _smooth("softsign", input, (), False, options)


def squared_relu(input: Tensor, **options: Unpack[Options]) -> Tensor:
    """``relu(input) ** 2``, keeping few bits. Its derivative has no bound: the last step serves all large inputs."""
    return _smooth("squared_relu", input, (), False, options, "aten::pow.Tensor_Scalar")


def tanh(input: Tensor, **options: Unpack[Options]) -> Tensor:
    """``torch.tanh``, keeping few bits, of ``|input|``: the derivative is even."""
    return _smooth("tanh", input, (), False, options)


def tanhshrink(input: Tensor, **options: Unpack[Options]) -> Tensor:
    """``torch.nn.functional.tanhshrink``, keeping few bits, of ``|input|``: the derivative is even."""
    return _smooth("tanhshrink", input, (), False, options)


def _smooth(
    name: str,
    input: Tensor,
    parameters: tuple[float, ...],
    inplace: bool,
    options: Options,
    operator: str | None = None,
) -> Tensor:
    """``operator`` is the one that autocast may know of those that torch's function is made of."""
    check_options(**options)
    if not keeps_few_bits(input):
        if inplace:
            output: Tensor = getattr(F, name)(input, *parameters, inplace=True)
            return output
        return FUNCTIONS[name].call(input, *parameters)
    x = as_autocast(operator, input) if operator else input
    parameters = numbers(*parameters)
    if options.get("rounding") == "stochastic":
        return placed(_at_random(name, x, parameters, options), input, inplace)
    steps = _steps(name, x, parameters, options)
    output = actcore.stepwise(
        x,
        name,
        steps.boundaries,
        steps.levels,
        parameters=parameters,
        even=steps.even,
        guard="nonfinite",
    )
    return placed(output, input, inplace)


def _steps(name: str, x: Tensor, parameters: tuple[float, ...], options: Options) -> Steps:
    if (chosen := options.get("table")) is not None:
        return steps_of(chosen, x)
    if (borders := options.get("borders")) is not None:
        return user_steps(borders, options["values"], x)
    return steps_of(table(name, options.get("bits") or DEFAULT_BITS, parameters, options.get("weight", "uniform")), x)


def _at_random(name: str, x: Tensor, parameters: tuple[float, ...], options: Options) -> Tensor:
    codebook = level_table(name, options.get("bits") or DEFAULT_BITS, parameters, options.get("weight", "uniform"))
    return actcore.round_to_levels(
        x,
        name,
        constant(codebook.levels, x),
        parameters=parameters,
        seed=options.get("seed"),
        stream=options.get("stream", 0),
        guard="nonfinite",
    )
