"""The linear layer and the embedding."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

import actcore
from integrations._utils.autocast import as_matmul
from integrations.qmodules.layers.base import QLayer
from integrations.qmodules.layers.saving import Saving
from integrations.qmodules.levels import QLevel
from integrations.qmodules.precision import LayerPrecision


class LinearFunction(Function):
    """``F.linear`` of any number of dimensions; backward multiplies with the stored input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, saving: Saving) -> Tensor:
        saving.save(ctx, x if ctx.needs_input_grad[1] else None, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        x, weight = ctx.saving.restore(ctx, 1)
        ctx.saving.observe(gradient)
        to_x, to_weight, to_bias = ctx.needs_input_grad[:3]
        rows = _matrix(gradient)
        with torch.autocast(gradient.device.type, enabled=False):  # in forward's dtypes, wherever backward is called
            return (
                gradient.matmul(weight) if to_x and weight is not None else None,
                rows.t().mm(_matrix(x)) if to_weight and x is not None else None,
                rows.sum(0) if to_bias else None,
                None,
            )


class EmbeddingFunction(Function):
    """``F.embedding``; its indices are stored in the bits that their range takes, exactly."""

    @staticmethod
    def forward(
        ctx: Any,
        indices: Tensor,
        weight: Tensor,
        padding_idx: int,
        scale_grad_by_freq: bool,
        sparse: bool,
    ) -> Tensor:
        output: Tensor = torch.embedding(weight, indices, padding_idx, scale_grad_by_freq, sparse)
        ctx.rows, ctx.options = weight.shape[0], (padding_idx, scale_grad_by_freq, sparse)
        narrow = actcore.Narrow(0, max(weight.shape[0] - 1, 0))
        actcore.save_for_backward(ctx, (indices, narrow), operator="QEmbedding")
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        (indices,) = actcore.saved_tensors_of(ctx)
        return None, torch.ops.aten.embedding_backward(gradient, indices, ctx.rows, *ctx.options), None, None, None


def _matrix(x: Tensor) -> Tensor:
    """All but the last dimension as one; a reshape to -1 would refuse what has no elements."""
    return x.flatten(0, -2) if x.dim() > 1 else x[None]


class StoredLinear(QLayer):
    """Base class of Q-layers for linear layers of torch and other libraries, which have a weight of shape (outputs,
    inputs) and a bias.

    Args:
        group: which of the level's ``bits`` is the layer's average.
    """

    def __init__(self, *args: Any, group: int = 0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._begin(None, group)

    def _new_precision(self, level: QLevel, group: int) -> LayerPrecision:
        return LayerPrecision(level, "linear", group, channel_dim=-1)

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
        """Return the output of a forward that stores its input; ``None`` if the counterpart's own forward is to be
        used."""
        if not (self._stores(x, weight, bias) and x.dim()):
            return None
        given, factor, added = as_matmul(x, weight, bias)
        assert given is not None
        saving = self._saving(given, factor)
        if saving is None:
            return None
        output: Tensor = LinearFunction.apply(given, factor, added, saving)
        return output


class QLinear(StoredLinear, nn.Linear):
    """``torch.nn.Linear`` whose input, of any number of dimensions, is stored in a few bits.

    Args:
        group: index into the level's ``bits`` of the layer's average.
    """

    counterpart = nn.Linear

    def forward(self, input: Tensor) -> Tensor:
        output = self._linear(input, self.weight, self.bias)
        return super().forward(input) if output is None else output


class QEmbedding(QLayer, nn.Embedding):
    """``torch.nn.Embedding`` that stores its indices exactly, in the bits that their range needs.

    torch keeps 8 bytes per index, this layer ``ceil(log2(rows))`` bits: 10 for a table of 1,000 rows. The gradient is
    torch's bit for bit.
    """

    counterpart = nn.Embedding
    _rounds = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._begin(None, 0)

    def forward(self, input: Tensor) -> Tensor:
        # A table that renormalises its rows in forward is torch's to do.
        if not self.precision.level.compress or self.max_norm is not None or not self._stores(input, self.weight):
            return super().forward(input)
        padding = -1 if self.padding_idx is None else self.padding_idx
        output: Tensor = EmbeddingFunction.apply(input, self.weight, padding, self.scale_grad_by_freq, self.sparse)
        return output
