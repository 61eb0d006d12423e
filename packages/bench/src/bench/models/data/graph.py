"""``Graph``: what is trained on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Graph:
    """A graph for node classification.

    Attributes:
        name: what it is called in tables: ``"Cora"``, ``"CiteSeer"``, ``"digits"``.
        origin: where the data came from, in words.
        x: ``Float32[Tensor, "nodes features"]``.
        edge_index: ``Int64[Tensor, "2 edges"]``, both directions, no self-loops.
        y: ``Int64[Tensor, "nodes"]``, the classes; ``Float32[Tensor, "nodes classes"]`` where a node may have several.
        train, validation, test: ``Bool[Tensor, "nodes"]``.
    """

    name: str
    origin: str
    x: Tensor
    edge_index: Tensor
    y: Tensor
    train: Tensor
    validation: Tensor
    test: Tensor

    @property
    def several(self) -> bool:
        """Whether a node may have several classes."""
        return self.y.dim() == 2

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self.y.shape[1] if self.several else int(self.y.max()) + 1

    @property
    def measure(self) -> str:
        """What ``score`` is."""
        return "micro-F1" if self.several else "accuracy"

    def to(self, device: torch.device) -> Graph:
        """The same graph on a device."""
        tensors = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return Graph(name=self.name, origin=self.origin, **tensors)

    def loss(self, logits: Tensor) -> Tensor:
        """The mean over the training nodes: cross-entropy, or where a node may have several classes that of each."""
        function = F.binary_cross_entropy_with_logits if self.several else F.cross_entropy
        return function(logits[self.train], self.y[self.train])

    def score(self, logits: Tensor, nodes: Tensor) -> float:
        """Of some nodes, in percent: the accuracy, or where a node may have several classes micro-F1.

        Args:
            logits: ``Float[Tensor, "nodes classes"]``.
            nodes: ``Bool[Tensor, "nodes"]``, which; at least one.
        """
        if not self.several:
            return 100 * int((logits.argmax(1) == self.y)[nodes].sum()) / int(nodes.sum())
        found, true = logits[nodes] > 0, self.y[nodes] > 0
        both, either = int((found & true).sum()), int(found.sum()) + int(true.sum())
        return 200 * both / either if either else 100.0

    def __str__(self) -> str:
        return (
            f"{self.name} ({len(self.x):,} nodes, {self.edge_index.shape[1]:,} edges, {self.x.shape[1]:,} features, "
            f"{self.classes} classes; {self.origin})"
        )
