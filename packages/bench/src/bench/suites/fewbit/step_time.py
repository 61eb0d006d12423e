"""Part ``time``: forward and backward of few-bit activations and randomized linear layers beside torch's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bench.runner.clock import Action, in_turn
from bench.suites.fewbit.results import Times
from bench.suites.kernels.contenders import ACTCORE, TORCH, Pass
from integrations import fewbit
from integrations.fewbit import FUNCTIONS, FewBitFunction, RandomizedLinear

BITS = 3
ELEMENTS, QUICK_ELEMENTS = 8 * 2**20, 2**18
ROWS, QUICK_ROWS = 4096, 256
FEATURES = (768, 3072)  # of the linear layer, in and out
RATIO = 0.2
SKETCHES = ("gaussian", "rademacher", "dct", "dft", "rows")
ROUNDS, QUICK_ROUNDS = 9, 3


def activation(name: str, elements: int, rounds: int, device: torch.device) -> Times:
    """A function in ``BITS`` bits, or in the bits that it has if it is piecewise linear, beside torch's.

    Args:
        name: of ``integrations.fewbit.FUNCTIONS``.
        elements: of the float32 tensor.
        rounds: that count.
        device: where it is.
    """
    x = torch.randn(elements, generator=torch.Generator().manual_seed(0)).to(device)
    function = FUNCTIONS[name]
    passes = (Pass(ACTCORE, few_bit(function)), Pass(TORCH, partial(_plain, function)))
    actions = [contender.action for one in passes for contender in one.contenders(x)]
    own, others = in_turn(actions, rounds, device)
    return Times(name, "activation", elements, own, others)


def few_bit(function: FewBitFunction) -> Callable[[Tensor], Tensor]:
    """``fewbit``'s function of that name, with its default parameters."""
    options: dict[str, Any] = dict(function.defaults) if function.piecewise else {**function.defaults, "bits": BITS}
    if function.name == "gelu_tanh":  # one of torch's two forms of GELU
        return partial(fewbit.functional.gelu, approximate="tanh", **options)
    return partial(getattr(fewbit.functional, function.name), **options)


def _plain(function: FewBitFunction, x: Tensor) -> Tensor:
    return function.call(x, *function.defaults.values())


def linear(rows: int, rounds: int, device: torch.device) -> list[Times]:
    """A linear layer of ``FEATURES`` with every kind of sketch, and ``nn.Linear``, all in turn."""
    torch.manual_seed(0)
    x = torch.randn(rows, FEATURES[0], device=device, requires_grad=True)
    gradient = torch.randn(rows, FEATURES[1], device=device)
    layers = [nn.Linear(*FEATURES)]
    layers += [RandomizedLinear(*FEATURES, proj_dim_ratio=RATIO, matmul=kind) for kind in SKETCHES]
    plain, *others = in_turn([_step(layer.to(device), x, gradient) for layer in layers], rounds, device)
    return [Times(kind, "linear", x.numel(), seconds, plain) for kind, seconds in zip(SKETCHES, others, strict=True)]


def _step(layer: nn.Module, x: Tensor, gradient: Tensor) -> Action:
    """Forward, and the gradients of input, weight and bias."""
    return lambda: torch.autograd.grad(layer(x), [x, *layer.parameters()], gradient)
