"""Normalisation layers of one process."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from integrations._common.autocast import in_float32
from integrations.qmodules.functions.norm import BatchNorm, GroupNorm, LayerNorm, RMSNorm
from integrations.qmodules.functions.saving import Saving
from integrations.qmodules.layers.base import QLayer
from integrations.qmodules.levels import QLevel
from integrations.qmodules.precision import LayerPrecision
from integrations.rules.norms import FEW


class AnyBatchNorm(QLayer):
    """What batch normalisations of every number of dimensions share.

    Args:
        group: which of the level's ``bits`` is the layer's average.
    """

    norm = True
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None
    num_features: int
    momentum: float | None
    eps: float
    track_running_stats: bool

    def __init__(self, *args: Any, group: int = 0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._begin(None, group)

    def _new_precision(self, level: QLevel, group: int) -> LayerPrecision:
        return LayerPrecision(level, "norm", group)

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)  # type: ignore[operator]
        stores = self._stores(input, *_affine(self)) and self._may_normalize(input)
        saving = self._saving(input) if stores else None
        if saving is None:
            return self._torchs(input)
        return self._normalize(input, self._statistics(), self._count(), saving)

    def _torchs(self, input: Tensor) -> Tensor:
        """The counterpart's forward."""
        return super().forward(input)  # type: ignore[no-any-return]

    def _normalize(
        self, x: Tensor, statistics: tuple[Tensor | None, Tensor | None], momentum: float, saving: Saving
    ) -> Tensor:
        if torch.compiler.is_compiling():
            # Torch 2.10 and 2.11 do not compile a Function in which a symbol turns out to be a number.
            x = x.view(x.shape[0], self.num_features, *x.shape[2:])
        output: Tensor = BatchNorm.apply(x, self.weight, self.bias, *statistics, momentum, self.eps, saving)
        return output

    def _may_normalize(self, input: Tensor) -> bool:
        """Whether a statistic is over so many elements that their rounding leaves a gradient; torch refuses one."""
        return input.numel() > FEW * input.shape[1]

    def _statistics(self) -> tuple[Tensor | None, Tensor | None]:
        """The running ones that a batch changes."""
        return (self.running_mean, self.running_var) if self.track_running_stats else (None, None)

    def _count(self) -> float:
        """Counts this batch; the weight that its statistics have in the running ones."""
        if not self.track_running_stats or self.num_batches_tracked is None:
            return self.momentum or 0.0
        self.num_batches_tracked.add_(1)
        if self.momentum is None:  # the mean of all batches
            return 1.0 / float(self.num_batches_tracked)
        return self.momentum


class QBatchNorm1d(AnyBatchNorm, nn.BatchNorm1d):
    """``torch.nn.BatchNorm1d`` whose input is stored in a few bits."""

    counterpart = nn.BatchNorm1d


class QBatchNorm2d(AnyBatchNorm, nn.BatchNorm2d):
    """``torch.nn.BatchNorm2d`` whose input is stored in a few bits."""

    counterpart = nn.BatchNorm2d


class QBatchNorm3d(AnyBatchNorm, nn.BatchNorm3d):
    """``torch.nn.BatchNorm3d`` whose input is stored in a few bits."""

    counterpart = nn.BatchNorm3d


class _SampleNorm(QLayer):
    """A normalisation of each sample by itself. ActNN has none, and no model of their variance: they take 8 bits,
    because with fewer the stored input no longer has the mean that its gradient takes for granted."""

    norm = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._begin(None, 0)

    def _new_precision(self, level: QLevel, group: int) -> LayerPrecision:
        return LayerPrecision(replace(level, bits=(8,), initial_bits=8, per_sample=False, per_layer=False), "other")

    def _takes(self, input: Tensor) -> bool:
        return self.precision.level.norms and self._stores(input, *_affine(self))

    def _takes_rows(self, input: Tensor, shape: tuple[int, ...]) -> bool:
        """The same of a norm over the last dimensions, of which torch has this shape: of more than a few elements."""
        return self._takes(input) and tuple(input.shape[-len(shape) :]) == shape and math.prod(shape) > FEW


class QLayerNorm(_SampleNorm, nn.LayerNorm):
    """``torch.nn.LayerNorm`` whose input is stored in 8 bits."""

    counterpart = nn.LayerNorm

    def forward(self, input: Tensor) -> Tensor:
        if self._takes_rows(input, tuple(self.normalized_shape)):
            x, weight, bias = in_float32("aten::layer_norm", input, self.weight, self.bias)
            assert x is not None
            saving = self._saving(x)
            if saving is not None:
                output: Tensor = LayerNorm.apply(x, weight, bias, self.normalized_shape, self.eps, saving)
                return output
        return super().forward(input)


class QGroupNorm(_SampleNorm, nn.GroupNorm):
    """``torch.nn.GroupNorm`` whose input is stored in 8 bits."""

    counterpart = nn.GroupNorm

    def forward(self, input: Tensor) -> Tensor:
        if self._takes(input) and self._fits(input):
            x, weight, bias = in_float32("aten::group_norm", input, self.weight, self.bias)
            assert x is not None
            saving = self._saving(x)
            if saving is not None:
                output: Tensor = GroupNorm.apply(x, weight, bias, self.num_groups, self.eps, saving)
                return output
        return super().forward(input)

    def _fits(self, input: Tensor) -> bool:
        """Whether torch takes it, and has a statistic of more than a few elements."""
        if input.dim() < 2 or input.shape[1] != self.num_channels:
            return False
        return input.numel() > FEW * input.shape[0] * self.num_groups


class QRMSNorm(_SampleNorm, nn.RMSNorm):
    """``torch.nn.RMSNorm`` whose input is stored in 8 bits."""

    counterpart = nn.RMSNorm

    def forward(self, x: Tensor) -> Tensor:
        if self._takes_rows(x, tuple(self.normalized_shape)):
            cast, weight = in_float32("aten::rms_norm", x, self.weight)
            assert cast is not None
            saving = self._saving(cast)
            if saving is not None:
                output: Tensor = RMSNorm.apply(cast, weight, self.normalized_shape, self.eps, saving)
                return output
        return super().forward(x)


def _affine(norm: nn.Module) -> list[Tensor | None]:
    """Its weight and bias, as far as it has them."""
    return [getattr(norm, name, None) for name in ("weight", "bias")]
