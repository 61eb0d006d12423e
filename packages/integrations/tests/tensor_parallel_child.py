"""One of two ranks, for ``test_tensor_parallel.py``: a small transformer in tensor or sequence parallel, at a level.

Prints, as JSON, for each way: the loss of the plain and of the compressed step, the relative error of all gradients,
the rows of the report, and the largest difference between the ranks of a gradient that both have whole.
"""

import os
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from long_form import LONG
from nets import profiled_bytes
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
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
BLOCKS = 6  # of models with plans: a budget is for a few of them
BUDGETS = (1.0, 0.6, 0.4) if LONG else (1.0, 0.4)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, blocks=2, width=WIDTH):
        super().__init__()
        self.embedding, self.blocks = nn.Embedding(WORDS, width), nn.ModuleList(Block(width) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def describe(way, blocks):
    """How each layer is parallel."""
    tensor = {
        **{f"blocks.{number}.up": ColwiseParallel() for number in range(blocks)},
        **{f"blocks.{number}.down": RowwiseParallel() for number in range(blocks)},
    }
    sequence = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        **{f"blocks.{number}.norm": SequenceParallel() for number in range(blocks)},
        **{f"blocks.{number}.up": ColwiseParallel(input_layouts=Shard(1)) for number in range(blocks)},
        **{f"blocks.{number}.down": RowwiseParallel(output_layouts=Shard(1)) for number in range(blocks)},
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
    }
    whole = {**tensor, **{f"blocks.{number}.up": ColwiseParallel(use_local_output=False) for number in range(blocks)}}
    return {"tensor": tensor, "tensor, whole": whole, "sequence": sequence}[way]


WAYS = "one rank", "tensor", "sequence"
PARALLEL = WAYS[1:]


def make(way, mesh, blocks=2, width=WIDTH):
    torch.manual_seed(0)
    return place(Net(blocks, width), mesh, way)


def place(model, mesh, way):
    """A model in tensor or sequence parallel, and sharded over the mesh's other dimension if it has one."""
    if way == "one rank":
        return model
    parallelize_module(model, mesh["tp"], describe(way, len(model.blocks)))
    if mesh.ndim > 1:
        for block in model.blocks:
            fully_shard(block, mesh=mesh["data"])
        fully_shard(model, mesh=mesh["data"])
    return model


def step(model, watched=nullcontext):
    tokens = torch.randint(WORDS, (16, 32), generator=torch.Generator().manual_seed(1))
    with loss_parallel():
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        with watched():
            loss.backward()
    return whole(loss.detach()).item()


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def find_local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def spread(gradient, mesh):
    """The largest difference between ranks in tensor parallel of a gradient, or a part of it, that both have."""
    if isinstance(gradient, DTensor):
        names = gradient.device_mesh.mesh_dim_names
        if any(not one.is_replicate() for name, one in zip(names, gradient.placements, strict=True) if name == "tp"):
            return 0.0
        gradient = gradient.to_local()
    found = [torch.empty_like(gradient) for _ in range(mesh["tp"].size())]
    dist.all_gather(found, gradient.contiguous(), group=mesh.get_group("tp"))
    return (found[0] - found[1]).abs().max().item()


def compare(way, mesh, level, before=False, width=WIDTH, **options):
    plain = make(way, mesh, width=width)
    if before:
        torch.manual_seed(0)
        model = place(integrations.compress_model(Net(), level=level, min_bytes=0), mesh, way)
    else:
        model = integrations.compress_model(make(way, mesh, width=width), level=level, min_bytes=0, **options)
    modes = [CommDebugMode(), CommDebugMode()]
    losses = [step(net, lambda mode=mode: mode) for net, mode in zip((plain, model), modes, strict=True)]
    exact, found = (torch.cat([whole(one.grad).flatten() for one in net.parameters()]) for net in (plain, model))
    report = integrations.compression(model).report()
    return {
        "losses": losses,
        "collectives": [{str(name): count for name, count in mode.get_comm_counts().items()} for mode in modes],
        "error": ((found - exact).norm() / exact.norm()).item(),
        "spread": max(spread(one.grad, mesh) for one in model.parameters()),
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


def measure(model):
    """The most bytes of a step beyond its gradients. Threads of gloo free some tensors late: the least of twelve."""
    peaks = []
    for _ in range(12):
        model.zero_grad()
        dist.barrier()
        peaks.append(profiled_bytes(lambda: step(model))[0])
    return min(peaks) - sum(find_local(one.grad).nbytes for one in model.parameters())


def plan(way, mesh):
    """Of a plain step and of steps with exact plans: losses, whether gradients are equal bit for bit, the peaks,
    planned and measured, and how many saved tensors are recomputed; and what no plan raises."""
    plain = make(way, mesh, BLOCKS)
    loss = step(plain)
    exact = [whole(one.grad).clone() for one in plain.parameters()]
    found = {"plain": measure(plain), "refused": refuse(way, mesh, memory=0.02, error=0)}
    for memory in BUDGETS:
        model = integrations.compress_model(make(way, mesh, BLOCKS), memory=memory, error=0)
        losses = [loss, step(model)]
        first = [whole(one.grad).clone() for one in model.parameters()]
        measured = measure(model)
        last = [whole(one.grad) for one in model.parameters()]
        rows = integrations.compression(model).report().rows
        found[str(memory)] = {
            "losses": losses,
            "equal": all(map(torch.equal, exact, first)) and all(map(torch.equal, exact, last)),
            "planned": integrations.checkpoint.plan_of(model).peak,
            "measured": measured,
            "recomputed": sum(row.codec == "recomputed" for row in rows),
        }
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=ranks)
    dimensions = {"tp": 2} if ranks == 2 else {"data": ranks // 2, "tp": 2}
    mesh = init_device_mesh("cpu", tuple(dimensions.values()), mesh_dim_names=tuple(dimensions))
    found = {level: {way: compare(way, mesh, level) for way in WAYS} for level in ("L1", "lean")}
    found["lean, 256 features"] = {way: compare(way, mesh, "lean", width=256) for way in WAYS}
    found["lean"]["tensor, whole"] = compare("tensor, whole", mesh, "lean")
    found["L1, compressed before"] = {way: compare(way, mesh, "L1", before=True) for way in PARALLEL}
    if ranks > 2:
        leave(found)
    found["L2"] = {way: refuse(way, mesh, level="L2", min_bytes=0) for way in PARALLEL}
    layers = {"layers": {"layers": "q"}, "linear": {"linear": 0.5}, "activations": {"activations": 3}}
    found["layers"] = {name: refuse("sequence", mesh, **options) for name, options in layers.items()}
    found["plan"] = {way: plan(way, mesh) for way in WAYS}
    found["plan at L1"] = {way: compare(way, mesh, "L1", memory="least") for way in WAYS}
    found["error"] = {way: refuse(way, mesh, memory=0.6, error=0.1) for way in PARALLEL}
    leave(found)
