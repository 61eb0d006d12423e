"""One of two ranks, for ``test_qmodules_ranks.py``: a converted model with SyncBatchNorm under DDP, on the CPU.

Prints, as JSON, the errors of its gradients and running statistics against those of a plain model with BatchNorm on the
whole batch, and sums of its gradients; and what it rounded a tensor to that both ranks have.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from two_ranks import leave

from integrations import qmodules


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 4)
    )


def step(net, x):
    (net(x) ** 2).sum().backward()


def error(expected, found):
    return ((found - expected).norm() / expected.norm()).item()


def compare(shares, level="L2"):
    """A step with that many samples on each rank, of 8 in all."""
    x = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    plain = model()
    step(plain, x)
    net = nn.SyncBatchNorm.convert_sync_batchnorm(model())
    qmodules.QModule(net, level, bits=(8,))
    step(DistributedDataParallel(net), x.split(shares)[dist.get_rank()])
    gradients = [p.grad * dist.get_world_size() for p in net.parameters()]  # DDP takes the mean
    pairs = list(zip((p.grad for p in plain.parameters()), gradients, strict=True))
    del pairs[1]  # the bias below a norm: a sum that cancels
    statistics = zip(plain[1].buffers(), net[1].buffers(), strict=True)
    return {
        "layer": type(net[1]).__name__,
        "errors": [error(*pair) for pair in pairs],
        "statistics": [error(a.double(), b.double()) for a, b in statistics],
        "sums": [gradient.double().sum().item() for gradient in gradients],
    }


def rounded():
    """What this rank rounds a tensor to that all ranks have."""
    layer = qmodules.QModule(nn.Sequential(nn.Linear(64, 4)), "L3")
    layer(torch.randn(8, 64, generator=torch.Generator().manual_seed(1))).sum().backward()
    return layer[0].weight.grad.double().sum().item()


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=ranks)
    found = {"equal": compare([4, 4]), "unequal": compare([6, 2]), "off": compare([5, 3], "L0"), "rounded": rounded()}
    leave(found)
