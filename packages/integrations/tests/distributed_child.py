"""One of two ranks, for ``test_works_with.py``: one step of a compressed model under DDP and FSDP2, on the CPU.

Prints, as JSON, what the rank found for each: the relative error of the averaged gradients against those of a plain
model on the whole batch, their sums, and which codecs and owners its report names; and what it made of an activation
that both ranks have.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from two_ranks import leave

import integrations


def model():
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.ReLU())))


def ddp():
    net = integrations.compress_model(model(), "L1.1", min_bytes=0)
    return net, DistributedDataParallel(net)


def fsdp(compressed_first=False):
    net = model()
    if compressed_first:
        integrations.compress_model(net, "L1.1", min_bytes=0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    if not compressed_first:
        integrations.compress_model(net, "L1.1", min_bytes=0)
    return net, net


def whole(gradient):
    return gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient


def step(net, wrapped):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(48, 64, generator=generator)
    plain = model()
    plain(x).square().mean().backward()
    wrapped(x.chunk(dist.get_world_size())[dist.get_rank()]).square().mean().backward()
    found = [whole(p.grad) for p in net.parameters()]
    expected = [p.grad for p in plain.parameters()]
    report = integrations.compression(net).report()
    return {
        "error": max(((a - b).norm() / b.norm()).item() for a, b in zip(found, expected, strict=True)),
        "sum": [gradient.double().sum().item() for gradient in found],
        "codecs": sorted({row.codec.partition("(")[0] for row in report.rows if not row.owner}),
        "owners": sorted({row.owner for row in report.rows if row.owner}),
    }


def dtensors():
    """Activations of which each rank has half of the rows, and then, behind a layer that is cut the other way, half of
    the columns: the error of all gradients, and what the rows say."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    x = torch.randn(48, 64, generator=torch.Generator().manual_seed(1))
    plain, net = model(), model()
    plain(x).square().mean().backward()
    plan = {"0": ColwiseParallel(input_layouts=Shard(0), use_local_output=False)}
    net = distribute_module(parallelize_module(net, mesh, plan), mesh)
    integrations.compress_model(net, "L1.1", min_bytes=0)
    net(distribute_tensor(x, mesh, [Shard(0)])).square().mean().backward()
    pairs = zip(net.parameters(), plain.parameters(), strict=True)
    rows = [row for row in integrations.compression(net).report().rows if row.operator == "relu"]
    return {
        "error": max(((whole(a.grad) - b.grad).norm() / b.grad.norm()).item() for a, b in pairs),
        "relu": [(row.codec.partition("(")[0], row.stored_bytes) for row in rows],
    }


def rounded():
    """The input of the last linear layer as its backward will read it, summed."""
    net = integrations.compress_model(model(), "L1.2", min_bytes=0)
    relu = net(torch.randn(48, 64, generator=torch.Generator().manual_seed(1))).grad_fn
    return relu.next_functions[0][0]._saved_mat1.double().sum().item()


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=ranks)
    found = {
        "ddp": step(*ddp()),
        "fsdp": step(*fsdp()),
        "fsdp, compressed first": step(*fsdp(True)),
        "dtensor": dtensors(),
        "rounded": rounded(),
    }
    leave(found)
