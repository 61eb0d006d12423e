"""The linear layer and the embedding."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from integrations._common.autocast import as_matmul
from integrations.qmodules.functions.linear import Embedding, Linear
from integrations.qmodules.layers.base import QLayer
from integrations.qmodules.levels import QLevel
from integrations.qmodules.precision import LayerPrecision


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
        output: Tensor = Linear.apply(given, factor, added, saving)
        return output


class QLinear(StoredLinear, nn.Linear):
    """``torch.nn.Linear`` whose input, of any number of dimensions, is stored in a few bits.

    Args:
        group: which of the level's ``bits`` is the layer's average.
    """

    counterpart = nn.Linear

    def forward(self, input: Tensor) -> Tensor:
        output = self._linear(input, self.weight, self.bias)
        return super().forward(input) if output is None else output


class QEmbedding(QLayer, nn.Embedding):
    """``torch.nn.Embedding`` whose indices are stored, exactly, in the bits that their range takes.

    torch keeps 8 bytes an index, this ``ceil(log2(rows))`` bits: 10 for a table of 1,000 rows. The gradient is torch's
    bit for bit.
    """

    counterpart = nn.Embedding

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._begin(None, 0)

    def forward(self, input: Tensor) -> Tensor:
        # A table that renormalises its rows in forward is torch's to do.
        if not self.precision.level.compress or self.max_norm is not None or not self._stores(input, self.weight):
            return super().forward(input)
        padding = -1 if self.padding_idx is None else self.padding_idx
        output: Tensor = Embedding.apply(input, self.weight, padding, self.scale_grad_by_freq, self.sparse)
        return output
