"""One of two ranks, for ``test_gather_report.py``: prints, as JSON, the reports of all ranks in several settings."""

import os
import sys
from dataclasses import asdict

import torch
import torch.distributed as dist
from nets import mlp, normal
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from two_ranks import leave

import integrations


def stepped(model, rows=32, **options):
    """A compressed model after a step with so many rows."""
    integrations.compress_model(model, **options)
    model(normal(rows, 64)).sum().backward()
    return model


def data_parallel(rank):
    model = integrations.compress_model(mlp(64, 8), memory="least")
    DistributedDataParallel(model)(normal(256, 64)).sum().backward()
    return model


def sharded(rank):
    return stepped(fully_shard(mlp(64, 4)), level="lean", min_bytes=0)


def tensor_parallel(rank):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return stepped(parallelize_module(mlp(64, 2), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}), level="L1")


def pipeline(rank):
    """Another stage, level and batch on each rank."""
    return stepped(mlp(64, 2 + rank), rows=32 * (1 + rank), level=("L1", "L1.1")[rank], min_bytes=0)


def one_compressed(rank):
    return mlp() if rank else stepped(mlp(64), level="L1", min_bytes=0)


def describe(model, **options):
    """What a rank is given, and what its own report is."""
    try:
        report = integrations.gather_report(model, **options)
    except (RuntimeError, TypeError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    found = {"text": str(report), "note": report.note, "ranks": [asdict(one) for one in report.ranks]}
    try:
        own = integrations.compression(model).report()
    except (TypeError, ValueError):
        return found
    names = found["ranks"][0].keys() - {"rank", "error"}
    return found | {"own": {name: getattr(own, name) for name in names}}


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=ranks)
    ways = data_parallel, sharded, tensor_parallel, pipeline, one_compressed
    found = {way.__name__: describe(way(rank)) for way in ways}
    found["none"] = describe(mlp())
    found["no module"] = describe(None if rank else stepped(mlp(64), level="L1"))
    found["group"] = describe(pipeline(rank), group=dist.new_group([1]))
    leave(found)
