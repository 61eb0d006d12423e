"""A network of PyG in layers that can be checkpointed one by one."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class GraphLayer(nn.Module):
    """A convolution with all that follows it before the next one.

    Args:
        convolution: called with features and graph.
        *rest: modules called with features, in this order.
    """

    def __init__(self, convolution: nn.Module, *rest: nn.Module) -> None:
        super().__init__()
        self.convolution = convolution
        self.rest = nn.Sequential(*rest)

    def forward(self, x: Tensor, graph: Tensor) -> Tensor:
        """``Float["nodes features"]`` of the same with other features."""
        found: Tensor = self.rest(self.convolution(x, graph))
        return found


class GraphLayers(nn.Module):
    """What PyG's ``BasicGNN`` computes, made of its modules.

    PyG has the convolutions in one list, the norms in another, and one activation and dropout for all. Who checkpoints
    its convolutions alone keeps what the norms, activations and dropouts between them save, which is most of it.

    Args:
        model: a ``BasicGNN`` with its defaults of ``jk`` (none) and ``act_first`` (norms come before activations).
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        *inner, last = model.convs
        between = [
            GraphLayer(convolution, norm, model.act, model.dropout)
            for convolution, norm in zip(inner, model.norms, strict=False)  # the last layer's norm is never called
        ]
        self.layers = nn.ModuleList([*between, GraphLayer(last)])

    def forward(self, x: Tensor, graph: Tensor) -> Tensor:
        """``Float["nodes classes"]`` of ``Float["nodes features"]``."""
        for layer in self.layers:
            x = layer(x, graph)
        return x
