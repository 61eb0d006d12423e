"""One rank of distributed runs at an adaptive level: ``python adaptive_child.py RANK STORE OUTPUT``."""

import sys

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from two_ranks import leave

import integrations

rank, store, output = int(sys.argv[1]), sys.argv[2], sys.argv[3]


class Net(nn.Module):
    def __init__(self, branches):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.three = (nn.Linear(64, 64) for _ in range(3))
        self.branches = branches

    def forward(self, x):
        x = self.two(self.one(x).relu())
        if self.branches and rank == 1:  # every parameter gets a gradient, but other tensors are saved
            return x + 0 * sum(map(torch.sum, self.three.parameters()))
        return self.three(x.relu())


def train(case):
    model = integrations.compress_model(Net(case == "disagree"), "L2.2")
    handle = integrations.compression(model)
    wrapped = DistributedDataParallel(model)
    # Their data differ by a factor of 10, and their own plans would, too.
    inputs = (1 + 9 * rank) * torch.randn(32, 64, generator=torch.Generator().manual_seed(rank))

    def closure():
        wrapped.zero_grad()
        wrapped(inputs).square().mean().backward()

    said = ""
    try:
        if case == "adapt":
            handle.adapt(closure)
        else:
            for _ in range(3):
                closure()
    except RuntimeError as error:
        said = str(error)
    return {"plan": None if handle.plan is None else handle.plan.plain(), "said": said}


def train_stage():
    """A stage of a pipeline: the second rank's forward waits for what the first one's has made."""
    model = integrations.compress_model(Net(False), "L2.2")
    x = torch.randn(32, 64)
    for _ in range(4):
        if rank == 1:
            torch.distributed.recv(x, 0)
        made = model(x)
        if rank == 0:
            torch.distributed.send(made.detach(), 1)
        made.square().mean().backward()
    return {"plan": integrations.compression(model).plan is not None}


torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
torch.set_num_threads(1)
found = {case: train(case) for case in ("loop", "adapt", "disagree")}
torch.save({**found, "stage": train_stage()}, output)
leave()
