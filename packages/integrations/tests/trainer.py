"""A model in a training loop at an adaptive level, and what a trial run of it might touch."""

import copy
import random

import torch
import torch.nn.functional as F
from torch import nn

import integrations

from .nets import mlp, normal

X = normal(48, 64)
TARGET = normal(48, 64, seed=1)


class Trainer:
    """A model with dropout and batch norm at an adaptive level, and its optimizer."""

    def __init__(self, level="L2", **options):
        torch.manual_seed(0)
        self.model = nn.Sequential(mlp(), nn.Dropout(0.2), nn.BatchNorm1d(64), nn.Linear(64, 64))
        integrations.compress_model(self.model, level, **options)
        self.handle = integrations.compression(self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def closure(self):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(X), TARGET)
        loss.backward()
        return loss.item()

    def train(self, steps):
        losses = []
        for _ in range(steps):
            losses.append(self.closure())
            self.optimizer.step()
        return losses

    def snapshot(self):
        """Everything that a trial run might touch."""
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        named = dict(self.model.named_parameters())
        grads = {name: (id(p.grad), None if p.grad is None else p.grad.clone()) for name, p in named.items()}
        weights = {name: p.detach().clone() for name, p in named.items()}
        state = copy.deepcopy(self.optimizer.state_dict()["state"])
        generators = torch.get_rng_state(), random.getstate()
        return [buffers, grads, weights, state, generators, self.handle.step]


def assert_equal(one, other):
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert_equal(value, other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_equal(a, b)
    else:
        assert one == other
