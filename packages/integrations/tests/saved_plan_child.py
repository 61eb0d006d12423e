"""Trains models by plans that were saved to files, in a process of its own, without planning.

Run with the folder of the plans; prints one JSON object: for each of ``WAYS`` a digest of all gradients.
"""

import hashlib
import json
import sys
from pathlib import Path

import torch
from torch import nn

import integrations
from integrations.api.handle import plan_manager, plans_with_stores

WAYS = {
    "exact": {"memory": 0.6},
    "rounded": {"memory": 0.5, "error": 0.1},
    "level": {"level": "L1", "memory": 0.9, "seed": 3},
    "exchanged": {"memory": "least", "linear": "randomized"},
}
"""Arguments of ``compress_model`` by the name of the plan that is made for them."""


def net():
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.GELU())))


def digest_of_steps(model, steps=2):
    """The gradients of training steps of two batches each, so that both plans are followed."""
    torch.manual_seed(1)
    batches, found = torch.randn(2, 256, 64), hashlib.sha256()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        for batch in batches:
            model(batch).square().mean().backward()
        for parameter in model.parameters():
            found.update(parameter.grad.numpy().tobytes())
        optimizer.step()
    return found.hexdigest()


def compressed_by(path, way):
    """A net that follows a saved plan, with the layers of a way exchanged."""
    exchanged = {name: value for name, value in WAYS[way].items() if name == "linear"}
    return integrations.compress_model(net(), plan=path, **exchanged)


if __name__ == "__main__":
    plan_manager.planned = plans_with_stores.planned = None  # nothing is planned
    torch.set_num_threads(1)
    print(json.dumps({way: digest_of_steps(compressed_by(Path(sys.argv[1]) / way, way)) for way in WAYS}))
