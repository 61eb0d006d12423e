"""One of two ranks, for ``test_compiled_ranks.py``: compiled models under DistributedDataParallel and ``fully_shard``.

Prints, as JSON, by case: the relative error of the gradient, beside that of one process with both batches; the bytes
that are stored; and, with a plan, the counted peak of the compiled graph and the bytes of the budget. Or the error.
"""

import copy
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from two_ranks import leave

import integrations
from integrations.runtime.compiled.joint_plans import JOINT

LEVEL, PLAN = {"level": "L1", "min_bytes": 0}, {"memory": 0.7, "error": 0}
BLOCKS, ROWS, WIDTH = 2, 64, 32


def network():
    torch.manual_seed(0)
    return nn.Sequential(*map(block, range(BLOCKS))).train()


def block(number):
    return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))


def replicated(model, backend):
    """In several buckets, by which torch splits the compiled graph."""
    return torch.compile(DistributedDataParallel(model, bucket_cap_mb=0.01), backend=backend)


def sharded(model, backend):
    return torch.compile(fully_shard(model, mesh=init_device_mesh("cpu", (2,))), backend=backend)


def sharded_in_blocks(model, backend):
    mesh = init_device_mesh("cpu", (2,))
    for block in model:
        fully_shard(block, mesh=mesh)
    return sharded(model, backend)


def sharded_and_compiled_in_blocks(model, backend):
    mesh = init_device_mesh("cpu", (2,))
    for block in model:
        fully_shard(block, mesh=mesh).compile(backend=backend)
    return fully_shard(model, mesh=mesh)


CASES = {
    "replicated, level": (replicated, LEVEL, "aot_eager"),
    "replicated, plan": (replicated, PLAN, "inductor"),
    "sharded, level": (sharded, LEVEL, "aot_eager"),
    "sharded, plan": (sharded, PLAN, "aot_eager"),
    "sharded in blocks, level": (sharded_in_blocks, LEVEL, "aot_eager"),
    "sharded in blocks, plan": (sharded_in_blocks, PLAN, "aot_eager"),
    "sharded and compiled in blocks, level": (sharded_and_compiled_in_blocks, LEVEL, "aot_eager"),
    "sharded and compiled in blocks, plan": (sharded_and_compiled_in_blocks, PLAN, "aot_eager"),
}


def gradient(model):
    grads = [parameter.grad for parameter in model.parameters()]
    return torch.cat([(one.full_tensor() if hasattr(one, "full_tensor") else one).flatten() for one in grads])


def trained(way, options, backend, x, expected):
    torch.compiler.reset()
    model = integrations.compress_model(network(), **options)
    function = way(model, backend)
    for _ in range(2):
        model.zero_grad()
        try:
            function(x).square().mean().backward()
        except ValueError as error:
            return {"raised": str(error)}
    handle = integrations.compression(model)
    stored = sum(row.stored_bytes for row in handle.report().rows if not row.owner and row.codec != "recomputed")
    found = {"error": ((gradient(model) - expected).norm() / expected.norm()).item(), "stored": stored}
    if handle.plan is not None:
        joint = handle.plan.others.get(JOINT)
        budget = int(options["memory"] * handle.plan.uncompressed_peak)
        found |= {"peak": None if joint is None else joint.peak, "budget": budget}
    return found


def main():
    rank = int(os.environ["RANK"])
    dist._DEFAULT_FIRST_BUCKET_BYTES = 5000
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
    both = torch.randn(2 * ROWS, WIDTH, generator=torch.Generator().manual_seed(1))
    plain = copy.deepcopy(network())
    plain(both).square().mean().backward()
    x = both[rank * ROWS : (rank + 1) * ROWS].clone()
    leave({case: trained(*case_of, x, gradient(plain)) for case, case_of in CASES.items()})


if __name__ == "__main__":
    main()
