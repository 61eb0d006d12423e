"""Piecewise linear activations as layers."""

from __future__ import annotations

from torch import Tensor, nn

from integrations.fewbit.functional import piecewise
from integrations.fewbit.modules.base import Piecewise


class ReLU(Piecewise, nn.ReLU):
    """``torch.nn.ReLU`` that keeps 1 bit an element."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        return piecewise.relu(input, self.inplace)


class LeakyReLU(Piecewise, nn.LeakyReLU):
    """``torch.nn.LeakyReLU`` that keeps 1 bit an element."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        return piecewise.leaky_relu(input, self.negative_slope, self.inplace)


class Threshold(Piecewise, nn.Threshold):
    """``torch.nn.Threshold`` that keeps 1 bit an element."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        return piecewise.threshold(input, self.threshold, self.value, self.inplace)


class Hardsigmoid(Piecewise, nn.Hardsigmoid):
    """``torch.nn.Hardsigmoid`` that keeps 1 bit an element."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        return piecewise.hardsigmoid(input, self.inplace)


class Hardtanh(Piecewise, nn.Hardtanh):
    """``torch.nn.Hardtanh`` that keeps 1 bit an element."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        return piecewise.hardtanh(input, self.min_val, self.max_val, self.inplace)


class ReLU6(Piecewise, nn.ReLU6):
    """``torch.nn.ReLU6`` that keeps 1 bit an element."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        return piecewise.relu6(input, self.inplace)


class Hardshrink(Piecewise, nn.Hardshrink):
    """``torch.nn.Hardshrink`` that keeps 1 bit an element."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        return piecewise.hardshrink(input, self.lambd)


class Softshrink(Piecewise, nn.Softshrink):
    """``torch.nn.Softshrink`` that keeps 1 bit an element."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        return piecewise.softshrink(input, self.lambd)
