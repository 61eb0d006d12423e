"""Smooth activations: torch's values, and a derivative of steps that takes a few bits an element.

The method is that of "Few-bit backward" (Novikov et al., ICML 2023). Where the input is NaN or infinite the gradient is
NaN, and so are those of the 1024 elements around it in memory, for which one byte tells it. What the functions take
beside torch's arguments are the keywords of ``Options``. ``create_graph=True`` raises: second derivatives are lost.
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from integrations.fewbit.functional.rounded import rounded
from integrations.policies.codebooks.options import Options, check_approximate


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False, **options: Unpack[Options]) -> Tensor:
    """``torch.nn.functional.celu``, keeping few bits; each ``alpha`` has steps of its own."""
    return rounded("celu", input, (alpha,), options, inplace)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False, **options: Unpack[Options]) -> Tensor:
    """``torch.nn.functional.elu``, keeping few bits; each ``alpha`` has steps of its own."""
    return rounded("elu", input, (alpha,), options, inplace)


def gelu(input: Tensor, approximate: str = "none", **options: Unpack[Options]) -> Tensor:
    """``torch.nn.functional.gelu``, keeping few bits; ``approximate`` is ``"none"`` or ``"tanh"``."""
    check_approximate(approximate)
    return rounded("gelu" if approximate == "none" else "gelu_tanh", input, (), options)


def hardswish(input: Tensor, inplace: bool = False, **options: Unpack[Options]) -> Tensor:
    """``torch.nn.functional.hardswish``, keeping few bits."""
    return rounded("hardswish", input, (), options, inplace)


def logsigmoid(input: Tensor, **options: Unpack[Options]) -> Tensor:
    """``torch.nn.functional.logsigmoid``, keeping few bits."""
    output = rounded("logsigmoid", input, (), options)
    # As torch does, which on other devices keeps the order of the input.
    return output.contiguous() if output.device.type == "cpu" else output


def mish(input: Tensor, inplace: bool = False, **options: Unpack[Options]) -> Tensor:
    """``torch.nn.functional.mish``, keeping few bits."""
    return rounded("mish", input, (), options, inplace)


def quick_gelu(input: Tensor, **options: Unpack[Options]) -> Tensor:
    """``input * sigmoid(1.702 * input)``, keeping few bits."""
    return rounded("quick_gelu", input, (), options)


def selu(input: Tensor, inplace: bool = False, **options: Unpack[Options]) -> Tensor:
    """``torch.nn.functional.selu``, keeping few bits."""
    return rounded("selu", input, (), options, inplace)


def sigmoid(input: Tensor, **options: Unpack[Options]) -> Tensor:
    """``torch.sigmoid``, keeping few bits, of ``|input|``: the derivative is even."""
    return rounded("sigmoid", input, (), options)


def silu(input: Tensor, inplace: bool = False, **options: Unpack[Options]) -> Tensor:
    """``torch.nn.functional.silu``, keeping few bits."""
    return rounded("silu", input, (), options, inplace)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0, **options: Unpack[Options]) -> Tensor:
    """``torch.nn.functional.softplus``, keeping few bits; each ``beta`` and ``threshold`` have steps of their own."""
    return rounded("softplus", input, (beta, threshold), options)


def softsign(input: Tensor, **options: Unpack[Options]) -> Tensor:
    """``torch.nn.functional.softsign``, keeping few bits, of ``|input|``: the derivative is even."""
    return rounded("softsign", input, (), options)


def squared_relu(input: Tensor, **options: Unpack[Options]) -> Tensor:
    """``relu(input) ** 2``, keeping few bits. Its derivative has no bound: the last step serves all large inputs."""
    return rounded("squared_relu", input, (), options)


def tanh(input: Tensor, **options: Unpack[Options]) -> Tensor:
    """``torch.tanh``, keeping few bits, of ``|input|``: the derivative is even."""
    return rounded("tanh", input, (), options)


def tanhshrink(input: Tensor, **options: Unpack[Options]) -> Tensor:
    """``torch.nn.functional.tanhshrink``, keeping few bits, of ``|input|``: the derivative is even."""
    return rounded("tanhshrink", input, (), options)
