"""One of two ranks, for ``test_formulas_dtensors.py``: how often a backward communicates, plain and at ``lean``.

Prints, as JSON, for each function and each least size: the collectives of the plain and of the compressed backward, the
relative error of the gradient, and how the function's result is stored.
"""

import datetime
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from two_ranks import leave

import integrations

ROWS, FEATURES = 65, 64  # the ranks have 33 and 32 rows
FUNCTIONS = {
    "gelu": lambda net, h: F.gelu(h),
    "rms norm": lambda net, h: F.rms_norm(h, (FEATURES,), net.whole),
    "concatenated": lambda net, h: torch.cat([h[:, :40].relu(), h[:, 40:]], dim=1),
    "broadcast": lambda net, h: F.silu(h) * net.sharded,
    "gathered": lambda net, h: F.silu(h.redistribute(placements=[Replicate()])) * net.sharded,
}


class Net(nn.Module):
    def __init__(self, mesh, function):
        super().__init__()
        torch.manual_seed(0)

        def place(shape, placement):
            return nn.Parameter(distribute_tensor(torch.randn(shape), mesh, [placement]))

        self.function = function
        self.before, self.after = (place((FEATURES, FEATURES), Replicate()) for _ in range(2))
        self.whole, self.sharded = place((FEATURES,), Replicate()), place((FEATURES,), Shard(0))

    def forward(self, x):
        return F.linear(self.function(self, F.silu(F.linear(x, self.before))), self.after)


def compare(mesh, function, least):
    torch.manual_seed(1)
    x = distribute_tensor(torch.randn(ROWS, FEATURES), mesh, [Shard(0)])
    model = integrations.compress_model(Net(mesh, function), "lean", bits=8, min_bytes=least)
    counts, gradients = [], []
    for net in (Net(mesh, function), model):
        output = net(x)
        with CommDebugMode() as mode:
            output.square().sum().backward()
        counts.append({str(name): count for name, count in mode.get_comm_counts().items()})
        gradients.append(net.after.grad.full_tensor())
    exact, found = gradients
    rows = [one for one in integrations.compression(model).report().rows if one.operator == "linear" and not one.owner]
    error = ((found - exact).norm() / exact.norm()).item()
    return {"counts": counts, "error": error, "codec": rows[-1].codec.partition("(")[0]}


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    meet, limit = f"file://{sys.argv[1]}", datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=ranks, timeout=limit)
    mesh = init_device_mesh("cpu", (ranks,))
    sizes = {"all": 0, "of the larger part": 33 * FEATURES * 4}
    leave(
        {
            name: {which: compare(mesh, function, least) for which, least in sizes.items()}
            for name, function in FUNCTIONS.items()
        }
    )
