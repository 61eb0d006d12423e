"""Smooth activations: torch's values, and a derivative of steps that takes a few bits an element.

The method is that of "Few-bit backward" (Novikov et al., ICML 2023). Where the input is NaN or infinite the gradient is
NaN, and so are those of the 1024 elements around it in memory, for which one byte tells it. What the functions take
beside torch's arguments are the keywords of ``Options``. ``create_graph=True`` raises: second derivatives are lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

import torch.nn.functional as F
from torch import Tensor

import actcore
from integrations._utils.autocast import in_float32
from integrations._utils.in_place import placed
from integrations.fewbit.functional.conditions import keeps_few_bits, numbers
from integrations.policies.codebooks.catalogue import FUNCTIONS
from integrations.policies.codebooks.options import (
    DEFAULT_BITS,
    Options,
    Steps,
    check_approximate,
    check_keywords,
    constant,
    move_table,
    user_steps,
)
from integrations.policies.codebooks.tables import level_table, table


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False, **options: Unpack[Options]) -> Tensor:
    """``torch.nn.functional.celu``, keeping few bits; each ``alpha`` has steps of its own."""
    return _rounded("celu", input, (alpha,), options, inplace)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False, **options: Unpack[Options]) -> Tensor:
    """``torch.nn.functional.elu``, keeping few bits; each ``alpha`` has steps of its own."""
    return _rounded("elu", input, (alpha,), options, inplace)


def gelu(input: Tensor, approximate: str = "none", **options: Unpack[Options]) -> Tensor:
    """``torch.nn.functional.gelu``, keeping few bits; ``approximate`` is ``"none"`` or ``"tanh"``."""
    check_approximate(approximate)
    return _rounded("gelu" if approximate == "none" else "gelu_tanh", input, (), options)


def hardswish(input: Tensor, inplace: bool = False, **options: Unpack[Options]) -> Tensor:
    """``torch.nn.functional.hardswish``, keeping few bits."""
    return _rounded("hardswish", input, (), options, inplace)


def logsigmoid(input: Tensor, **options: Unpack[Options]) -> Tensor:
    """``torch.nn.functional.logsigmoid``, keeping few bits."""
    output = _rounded("logsigmoid", input, (), options)
    # As torch does, which on other devices keeps the order of the input.
    return output.contiguous() if output.device.type == "cpu" else output


def mish(input: Tensor, inplace: bool = False, **options: Unpack[Options]) -> Tensor:
    """``torch.nn.functional.mish``, keeping few bits."""
    return _rounded("mish", input, (), options, inplace)


def quick_gelu(input: Tensor, **options: Unpack[Options]) -> Tensor:
    """``input * sigmoid(1.702 * input)``, keeping few bits."""
    return _rounded("quick_gelu", input, (), options)


def selu(input: Tensor, inplace: bool = False, **options: Unpack[Options]) -> Tensor:
    """``torch.nn.functional.selu``, keeping few bits."""
    return _rounded("selu", input, (), options, inplace)


def sigmoid(input: Tensor, **options: Unpack[Options]) -> Tensor:
    """``torch.sigmoid``, keeping few bits, of ``|input|``: the derivative is even."""
    return _rounded("sigmoid", input, (), options)


def silu(input: Tensor, inplace: bool = False, **options: Unpack[Options]) -> Tensor:
    """``torch.nn.functional.silu``, keeping few bits."""
    return _rounded("silu", input, (), options, inplace)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0, **options: Unpack[Options]) -> Tensor:
    """``torch.nn.functional.softplus``, keeping few bits; each ``beta`` and ``threshold`` have steps of their own."""
    return _rounded("softplus", input, (beta, threshold), options)


def softsign(input: Tensor, **options: Unpack[Options]) -> Tensor:
    """``torch.nn.functional.softsign``, keeping few bits, of ``|input|``: the derivative is even."""
    return _rounded("softsign", input, (), options)


def squared_relu(input: Tensor, **options: Unpack[Options]) -> Tensor:
    """``relu(input) ** 2``, keeping few bits. Its derivative is unbounded: the last step serves all large inputs."""
    return _rounded("squared_relu", input, (), options)


def tanh(input: Tensor, **options: Unpack[Options]) -> Tensor:
    """``torch.tanh``, keeping few bits, of ``|input|``: the derivative is even."""
    return _rounded("tanh", input, (), options)


def tanhshrink(input: Tensor, **options: Unpack[Options]) -> Tensor:
    """``torch.nn.functional.tanhshrink``, keeping few bits, of ``|input|``: the derivative is even."""
    return _rounded("tanhshrink", input, (), options)


# The operators that autocast may know among those that a function is made of.
_AUTOCAST: Mapping[str, str] = {"softplus": "aten::softplus", "squared_relu": "aten::pow.Tensor_Scalar"}


def _rounded(
    name: str, input: Tensor, parameters: tuple[float, ...], options: Options, inplace: bool = False
) -> Tensor:
    """torch's function, and where its gradient will be asked for, a derivative of few bits.

    Args:
        name: of a smooth function in ``FUNCTIONS``.
        input: any shape.
        parameters: the function's, in torch's order.
        options: see ``Options``.
        inplace: whether the output takes the memory of ``input``; torch's function of that name takes it, too.
    """
    check_keywords(options)
    if not keeps_few_bits(input):
        if inplace:
            output: Tensor = getattr(F, name)(input, *parameters, inplace=True)
            return output
        return FUNCTIONS[name].call(input, *parameters)
    x = in_float32(_AUTOCAST[name], input)[0] if name in _AUTOCAST else input
    parameters = numbers(*parameters)
    if options.get("rounding") == "stochastic":
        return placed(_at_random(name, x, parameters, options), input, inplace)
    steps = _steps(name, x, parameters, options)
    output = actcore.stepwise(
        x, name, steps.boundaries, steps.levels, parameters=parameters, even=steps.even, guard="nonfinite"
    )
    return placed(output, input, inplace)


def _steps(name: str, x: Tensor, parameters: tuple[float, ...], options: Options) -> Steps:
    if (chosen := options.get("table")) is not None:
        return move_table(chosen, x)
    if (borders := options.get("borders")) is not None:
        return user_steps(borders, options["values"], x)
    return move_table(table(name, options.get("bits") or DEFAULT_BITS, parameters, options.get("weight", "uniform")), x)


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
