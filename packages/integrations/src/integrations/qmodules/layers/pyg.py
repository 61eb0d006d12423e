"""Q-layer of PyTorch Geometric's linear layer. This file is imported only if a model has a layer of that library."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from torch import Tensor, nn
from torch_geometric.nn.dense.linear import Linear

from integrations.qmodules.layers.base import QLayer
from integrations.qmodules.layers.linear import StoredLinear


class QPyGLinear(StoredLinear, Linear):  # type: ignore[misc]  # the library has no types
    """``torch_geometric.nn.Linear`` whose input, of any number of dimensions, is stored in a few bits.

    Args:
        group: which of the level's ``bits`` is the layer's average.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None
    counterpart = Linear
    __deepcopy__: ClassVar[Any] = None  # some versions of the library define one that returns their own class

    def forward(self, x: Tensor) -> Tensor:
        output = self._linear(x, self.weight, self.bias)
        if output is None:
            output = super().forward(x)
        return output


Q_LAYERS: Mapping[type[nn.Module], type[QLayer]] = MappingProxyType({Linear: QPyGLinear})
"""The Q-layers of the library's layers."""
