"""``rounded``: a smooth function of the catalogue, its derivative rounded to a few levels."""

from __future__ import annotations

from collections.abc import Mapping

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
    check_keywords,
    constant,
    move_table,
    user_steps,
)
from integrations.policies.codebooks.tables import level_table, table

# The operators that autocast may know among those that a function is made of.
_AUTOCAST: Mapping[str, str] = {"softplus": "aten::softplus", "squared_relu": "aten::pow.Tensor_Scalar"}


def rounded(name: str, input: Tensor, parameters: tuple[float, ...], options: Options, inplace: bool = False) -> Tensor:
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
