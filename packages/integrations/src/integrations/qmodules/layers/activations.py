"""Activations: one bit an element where that is exact, and few where the derivative is made of steps."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

import actcore
from integrations._utils.in_place import placed
from integrations.policies.codebooks.tables import table
from integrations.qmodules.layers.base import QLayer

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class _Activation(QLayer):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._begin(None, 0)

    def _takes(self, input: Tensor) -> bool:
        return self._stores(input) and input.dtype in DTYPES


class QReLU(_Activation, nn.ReLU):
    """``torch.nn.ReLU`` that keeps one bit per element. Values and gradients are torch's bit for bit."""

    counterpart = nn.ReLU
    _rounds = False

    def forward(self, input: Tensor) -> Tensor:
        if not self._takes(input):
            return super().forward(input)
        return placed(actcore.relu(input), input, self.inplace)


class QLeakyReLU(_Activation, nn.LeakyReLU):
    """``torch.nn.LeakyReLU`` that keeps one bit per element. Values and gradients are torch's bit for bit."""

    counterpart = nn.LeakyReLU
    _rounds = False

    def forward(self, input: Tensor) -> Tensor:
        if not self._takes(input) or (self.inplace and self.negative_slope < 0):  # which torch refuses
            return super().forward(input)
        # The interval from the least positive number on: torch gives zero the slope.
        least = math.ulp(0.0) if input.dtype == torch.float64 else 2.0**-149
        slope = self.negative_slope
        output = actcore.stepwise(input, "leaky_relu", (least,), (slope, 1.0), parameters=(slope,))
        return placed(output, input, self.inplace)


class _Smooth(_Activation):
    """A smooth activation: its derivative is rounded to one of ``2**bits`` levels ("Few-bit backward", Novikov et al.,
    ICML 2023), with the bits that the level gives, and 3 at the least. Double backward, which would miss the
    activation's curvature, raises."""

    def _approximated(self, input: Tensor, function: str) -> Tensor:
        level = self.precision.level
        if not self._takes(input):
            return super().forward(input)  # type: ignore[no-any-return]
        if level.compress:
            steps = table(function, max(3, math.ceil(level.bits[0])))
            return actcore.stepwise(input, function, steps.boundaries, steps.levels)
        if torch.compiler.is_compiling():
            return super().forward(input)  # type: ignore[no-any-return]
        with actcore.saved_tensors(_to_host):
            return super().forward(input)  # type: ignore[no-any-return]


def _to_host(saved: actcore.SavedTensor) -> actcore.Codec:
    return actcore.Offload()


class QGELU(_Smooth, nn.GELU):
    """``torch.nn.GELU``, exact in forward. Its derivative is a step function of 3 bits per element, or of the level's
    bits."""

    counterpart = nn.GELU

    def forward(self, input: Tensor) -> Tensor:
        return self._approximated(input, "gelu_tanh" if self.approximate == "tanh" else "gelu")


class QSiLU(_Smooth, nn.SiLU):
    """``torch.nn.SiLU``, exact in forward. Its derivative is a step function of 3 bits per element, or of the level's
    bits."""

    counterpart = nn.SiLU

    def forward(self, input: Tensor) -> Tensor:
        output = self._approximated(input, "silu")
        # Where torch's own forward ran, it is in place already.
        return placed(output, input, self.inplace and output is not input)
