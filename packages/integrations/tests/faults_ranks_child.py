"""One of two ranks, of which one dies while rank 0 plans for both, for ``test_faults_ranks.py``.

Its argument is the file at which both meet, and behind an ``@`` the rank that dies: rank 0 while it plans, or rank 1
when it asks for the plan. The other prints what it got, as JSON.
"""

import datetime
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import integrations
from integrations.api.handle import plan_manager

TIMEOUT = 60  # of the group, in seconds
X = torch.randn(1024, 64, generator=torch.Generator().manual_seed(0))


def net():
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.Tanh()))).train()


def die(*given, **named):
    """Ends this rank, without a word to the other."""
    os._exit(1)


def step(model):
    torch.manual_seed(1)
    model(X).square().mean().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


if __name__ == "__main__":
    torch.set_num_threads(1)
    meet, dies = sys.argv[1].split("@")
    rank = int(os.environ["RANK"])
    dist.init_process_group(
        "gloo", init_method=f"file://{meet}", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=TIMEOUT)
    )
    model = integrations.compress_model(net(), memory=0.9, error=0)
    outer = DistributedDataParallel(model)
    if rank == int(dies):
        setattr(plan_manager, "of_rank_0" if rank else "planned", die)
    before, began, told = [sorted(vars(module)) for module in model.modules()], time.monotonic(), ""
    try:
        outer(X)
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
    found = {"told": told, "in time": time.monotonic() - began < TIMEOUT}
    found["as before"] = before == [sorted(vars(module)) for module in model.modules()]
    found["no gradient"] = all(parameter.grad is None for parameter in model.parameters())
    handle = integrations.compression(model)
    found["at rest"] = not handle._sessions and handle._plan_manager.plan is None
    expected = step(net())
    found["goes on alone"] = all(map(torch.equal, step(model), expected))
    found["planned"] = handle._plan_manager.plan is not None
    print(json.dumps(found), flush=True)
    os._exit(0)  # the group cannot be left, as the other rank is gone
