"""One of two ranks, for ``test_tensor_parallel.py``: a small transformer in tensor or sequence parallel, at a level.

Prints, as JSON, for each way: the loss of the plain and of the compressed step, the relative error of all gradients,
the rows of the report, and the largest difference between the ranks of a gradient that both have whole.
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from nets import profiled_bytes
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from two_ranks import leave

import integrations

WIDTH, WORDS = 64, 128


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.blocks = nn.Embedding(WORDS, WIDTH), nn.ModuleList([Block(), Block()])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


TENSOR = {
    **{f"blocks.{number}.up": ColwiseParallel() for number in range(2)},
    **{f"blocks.{number}.down": RowwiseParallel() for number in range(2)},
}
SEQUENCE = {
    "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    **{f"blocks.{number}.norm": SequenceParallel() for number in range(2)},
    **{f"blocks.{number}.up": ColwiseParallel(input_layouts=Shard(1)) for number in range(2)},
    **{f"blocks.{number}.down": RowwiseParallel(output_layouts=Shard(1)) for number in range(2)},
    "norm": SequenceParallel(),
    "head": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
}
WAYS = {"one rank": {}, "tensor": TENSOR, "sequence": SEQUENCE}


def make(way, mesh):
    torch.manual_seed(0)
    return parallelize_module(Net(), mesh, WAYS[way]) if WAYS[way] else Net()


def step(model):
    tokens = torch.randint(WORDS, (16, 32), generator=torch.Generator().manual_seed(1))
    with loss_parallel():
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
    return whole(loss.detach()).item()


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def spread(gradient):
    """The largest difference between the ranks of a gradient that both have whole."""
    if isinstance(gradient, DTensor):
        if not all(placement.is_replicate() for placement in gradient.placements):
            return 0.0
        gradient = gradient.to_local()
    found = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]
    dist.all_gather(found, gradient.contiguous())
    return (found[0] - found[1]).abs().max().item()


def compare(way, mesh, level, before=False):
    plain = make(way, mesh)
    if before:
        torch.manual_seed(0)
        model = parallelize_module(integrations.compress_model(Net(), level=level, min_bytes=0), mesh, WAYS[way])
    else:
        model = integrations.compress_model(make(way, mesh), level=level, min_bytes=0)
    losses = step(plain), step(model)
    exact, found = (torch.cat([whole(one.grad).flatten() for one in net.parameters()]) for net in (plain, model))
    report = integrations.compression(model).report()
    return {
        "losses": losses,
        "error": ((found - exact).norm() / exact.norm()).item(),
        "spread": max(spread(one.grad) for one in model.parameters()),
        "bytes": [report.original_bytes, report.stored_bytes],
        "rows": [
            (row.module, row.operator, row.role, row.codec, row.original_bytes, row.stored_bytes)
            for row in report.rows
            if not row.owner
        ],
    }


def refuse(way, mesh, **options):
    """What a step with options that cannot be followed raises."""
    try:
        step(integrations.compress_model(make(way, mesh), **options))
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def plan(way, mesh):
    """The peaks of a plan for all memory, planned and measured, and what a plan for a third of it raises."""
    model = integrations.compress_model(make(way, mesh), memory=1.0, error=0)
    plain, found = step(make(way, mesh)), step(model)
    model.zero_grad()
    peak, gradients = profiled_bytes(lambda: step(model))
    other = integrations.compress_model(make(way, mesh), memory=0.3, error=0)
    try:
        step(other)
        refused = ""
    except ValueError as error:
        refused = str(error)
    planned = integrations.checkpoint.plan_of(model).peak
    return {"losses": [plain, found], "planned": planned, "measured": peak - gradients, "refused": refused}


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
    found = {level: {way: compare(way, mesh, level) for way in WAYS} for level in ("L1", "lean")}
    found["L1, compressed before"] = {way: compare(way, mesh, "L1", before=True) for way in WAYS if WAYS[way]}
    found["L2"] = {way: refuse(way, mesh, level="L2", min_bytes=0) for way in WAYS if WAYS[way]}
    layers = {"layers": {"layers": "q"}, "linear": {"linear": 0.5}, "activations": {"activations": 3}}
    found["layers"] = {name: refuse("sequence", mesh, **options) for name, options in layers.items()}
    found["plan"] = {way: plan(way, mesh) for way in WAYS if WAYS[way]}
    leave(found)
