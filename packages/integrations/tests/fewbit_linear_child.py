"""One of two ranks, for ``test_fewbit_linear_surroundings.py``: randomized layers, alone and under DDP, on the CPU.

Prints, as JSON, what this rank's sketches make of a batch that both ranks have.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from two_ranks import leave

from integrations.fewbit import RandomizedLinear


def batch():
    return torch.randn(64, 12, generator=torch.Generator().manual_seed(1))


def gradient(model, parameters):
    model.zero_grad()
    model(batch()).square().sum().backward()
    return sum(p.grad.double().square().sum().item() for p in parameters)


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    layer = RandomizedLinear(12, 6, proj_dim=16)
    seeded = RandomizedLinear(12, 6, proj_dim=16, seed=4)
    parallel = DistributedDataParallel(layer)
    found = {
        "own": gradient(layer, layer.parameters()),
        "seeded": gradient(seeded, seeded.parameters()),
        "shared": gradient(parallel, layer.parameters()),
        "outputs": layer(batch()).double().sum().item(),
    }
    leave(found)
