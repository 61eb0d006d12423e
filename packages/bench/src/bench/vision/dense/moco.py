"""A step of MoCo v2: two crops of the same images are to be told from a queue of earlier ones.

He et al., "Momentum Contrast for Unsupervised Visual Representation Learning", CVPR 2020; Chen et al., "Improved
Baselines with Momentum Contrastive Learning", arXiv 2003.04297.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MOMENTUM, TEMPERATURE, FEATURES = 0.999, 0.2, 128


class MoCo(nn.Module):
    """The loss of two crops, noise-contrastive, against a queue of earlier keys.

    Key encoder and queue are brought up to date when a step begins, not when one ends: the queue is a saved tensor of
    the step, and is not to be copied for that.

    Args:
        encoder: with a linear layer ``fc`` at its end, in whose place the head of two layers comes.
        queue: keys in it, at least as many as there are images in a step.
    """

    queue: Tensor
    pending: Tensor

    def __init__(self, encoder: nn.Module, queue: int) -> None:
        super().__init__()
        width = encoder.get_submodule("fc").in_features
        assert isinstance(width, int)
        encoder.fc = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, FEATURES))
        self.encoder = encoder
        self.key_encoder = copy.deepcopy(encoder).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(queue, FEATURES), dim=1))
        self.register_buffer("pending", torch.empty(0, FEATURES))
        self._place = 0  # of the oldest key

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """The mean loss of two crops of each image, both ``(batch, 3, height, width)``."""
        with torch.no_grad():
            self._begin()
            key = F.normalize(self.key_encoder(keys), dim=1)
        query = F.normalize(self.encoder(queries), dim=1)
        positive = (query * key).sum(dim=1, keepdim=True)
        logits = torch.cat([positive, query @ self.queue.T], dim=1) / TEMPERATURE
        self.pending = key
        return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long, device=logits.device))

    def _begin(self) -> None:
        """Moves the key encoder towards the other, and the last step's keys into the queue."""
        for own, other in zip(self.key_encoder.parameters(), self.encoder.parameters(), strict=True):
            own.lerp_(other, 1 - MOMENTUM)
        count = len(self.pending)
        places = (self._place + torch.arange(count, device=self.queue.device)) % len(self.queue)
        self.queue[places] = self.pending
        self._place = (self._place + count) % len(self.queue)
