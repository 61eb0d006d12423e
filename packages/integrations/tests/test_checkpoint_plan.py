"""A plan's budget beside checkpoints: what these store in bits of their own is no part of it."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import integrations

from .nets import normal

X = normal(16, 32, 32)
CHECKPOINT = "GroupAffine(bits=8"


class Gated(nn.Module):
    """Checkpoints whose inputs the layers around them save, too: before, as the gate's own input, or after."""

    def __init__(self, late=False):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.late = nn.Linear(32, 128), nn.Linear(128, 8), late
        self.gates = nn.ModuleList(nn.Linear(128, 128) for _ in range(3))
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(128), nn.Linear(128, 128)) for _ in range(3))

    def forward(self, x):
        x = self.first(x)
        for gate, block in zip(self.gates, self.blocks, strict=True):
            if self.late:
                x = checkpoint(block, x, use_reentrant=False) + gate(x)
            else:
                x = x + checkpoint(
                    lambda x, given, block=block: block(x) * given["scale"],
                    x,
                    {"scale": torch.sigmoid(gate(x))},
                    use_reentrant=False,
                )
        return self.last(torch.tanh(x))


def trained(level, **options):
    model = integrations.compress_model(Gated(**options), level)
    for _ in range(3):
        model.zero_grad()
        model(X).square().mean().backward()
    return integrations.compression(model)


@pytest.mark.parametrize("late", [False, True])
def test_a_plan_takes_no_more_bytes_than_its_bits_for_all(late):
    """L2 against L1, and L2.2 against L1.2."""
    for fixed, adaptive in (("L1", "L2"), ("L1.2", "L2.2")):
        most, found = (trained(level, late=late).report().stored_bytes for level in (fixed, adaptive))
        assert found <= most


@pytest.mark.parametrize("late", [False, True])
def test_a_plan_says_what_is_stored(late):
    handle = trained("L2.2", late=late)
    stored = {(row.module, row.operator, row.role): row.codec for row in handle.report().rows}
    planned = [(name, entry.bits) for entry in handle.plan.allotments for name in entry.identities]
    assert planned
    for name, bits in planned:
        assert stored[name.module, name.operator, name.role].startswith(f"GroupAffine(bits={bits},")
    beside = [row for row in handle.report().rows if row.module.startswith("gates") and row.role == "input"]
    assert [row.codec[: len(CHECKPOINT)] for row in beside] == [CHECKPOINT] * 3
