"""Smooth activations as layers."""

from __future__ import annotations

from torch import Tensor, nn

from integrations.fewbit.functional import smooth
from integrations.fewbit.modules.base import Smooth
from integrations.policies.codebooks.catalogue import FUNCTIONS


class CELU(Smooth, nn.CELU):
    """``torch.nn.CELU`` that keeps few bits an element."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        return smooth.celu(input, self.alpha, self.inplace, **self._options())


class ELU(Smooth, nn.ELU):
    """``torch.nn.ELU`` that keeps few bits an element."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        return smooth.elu(input, self.alpha, self.inplace, **self._options())


class GELU(Smooth, nn.GELU):
    """``torch.nn.GELU`` that keeps few bits an element."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        return smooth.gelu(input, self.approximate, **self._options())


class Hardswish(Smooth, nn.Hardswish):
    """``torch.nn.Hardswish`` that keeps few bits an element."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        return smooth.hardswish(input, self.inplace, **self._options())


class LogSigmoid(Smooth, nn.LogSigmoid):
    """``torch.nn.LogSigmoid`` that keeps few bits an element."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        return smooth.logsigmoid(input, **self._options())


class Mish(Smooth, nn.Mish):
    """``torch.nn.Mish`` that keeps few bits an element."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        return smooth.mish(input, self.inplace, **self._options())


class SELU(Smooth, nn.SELU):
    """``torch.nn.SELU`` that keeps few bits an element."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        return smooth.selu(input, self.inplace, **self._options())


class Sigmoid(Smooth, nn.Sigmoid):
    """``torch.nn.Sigmoid`` that keeps few bits an element."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        return smooth.sigmoid(input, **self._options())


class SiLU(Smooth, nn.SiLU):
    """``torch.nn.SiLU`` that keeps few bits an element."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        return smooth.silu(input, self.inplace, **self._options())


class Softplus(Smooth, nn.Softplus):
    """``torch.nn.Softplus`` that keeps few bits an element."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        return smooth.softplus(input, self.beta, self.threshold, **self._options())


class Softsign(Smooth, nn.Softsign):
    """``torch.nn.Softsign`` that keeps few bits an element."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        return smooth.softsign(input, **self._options())


class Tanh(Smooth, nn.Tanh):
    """``torch.nn.Tanh`` that keeps few bits an element."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        return smooth.tanh(input, **self._options())


class Tanhshrink(Smooth, nn.Tanhshrink):
    """``torch.nn.Tanhshrink`` that keeps few bits an element."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        return smooth.tanhshrink(input, **self._options())


class QuickGELU(Smooth):
    """``x * sigmoid(1.702 x)``, the GELU of CLIP, that keeps few bits an element."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return FUNCTIONS["quick_gelu"].call(input)
        return smooth.quick_gelu(input, **self._options())


class SquaredReLU(Smooth):
    """``relu(x) ** 2`` that keeps few bits an element ("Primer", So et al., NeurIPS 2021)."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return FUNCTIONS["squared_relu"].call(input)
        return smooth.squared_relu(input, **self._options())
