"""What tests of a plan's error share: a network whose steps change more than gradients, and plans that round all."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

from integrations.planner.choice import Choice
from integrations.policies.levels import LEVELS
from integrations.policies.stores import Store

BASE = replace(LEVELS["L0"], min_bytes=0)


class Block(nn.Module):
    """With what a step changes beside gradients: statistics, a generator, a count."""

    def __init__(self, width=64):
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.down = nn.BatchNorm1d(width), nn.Linear(4 * width, width)
        self.up = nn.Linear(width, 4 * width)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x + self.down(F.dropout(F.gelu(self.up(self.norm(x))), 0.1))


def blocks(count=3):
    return nn.Sequential(*(Block() for _ in range(count)), nn.Linear(64, 1)).train()


def all_stored(plan, bits):
    """A plan's choice that keeps everything, in so many bits where that is possible."""
    candidates, stores, variance = plan.rounded_candidates, [], 0.0
    for value, row in enumerate(candidates.options):
        found = [option for option in row if option.store == Store(bits)]
        if found:
            stores.append((value, Store(bits)))
            variance += candidates.weights[value] * found[-1].noise
    everything = (1 << len(plan.rounded.values)) - 1
    return replace(plan, choice=Choice(everything, 0, 0.0, 0.0, None, tuple(stores), variance, True))
