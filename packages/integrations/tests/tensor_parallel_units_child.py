"""One of four ranks, for ``test_tensor_parallel_units.py``: models that tensor parallelism and FSDP2 shard, with exact
plans, beside plain ones.

Prints, as JSON, for each case what the rank found: losses, whether gradients are equal bit for bit, bytes that were
planned and counted, collectives, and which plan it followed.
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from rank_bytes import LiveBytesOfRank, count_local
from tensor_parallel_child import WORDS, Net, describe, refuse, whole
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import loss_parallel, parallelize_module
from two_ranks import leave

import integrations
from integrations.checkpoint import plan_of

BLOCKS, MEMORY = 4, 0.5
MIXED = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
CASES = {  # how it is parallel, arguments of fully_shard, rows of a batch, and how many batches a step has
    "tensor": ("tensor", {}, 16, 1),
    "sequence, not resharded": ("sequence", {"reshard_after_forward": False}, 16, 1),
    "sequence, few rows": ("sequence", {}, 2, 1),
    "sequence, mixed, accumulated": ("sequence", {"mp_policy": MIXED}, 16, 2),
    "no tensor parallelism, few rows": (None, {}, 2, 1),
}


class LiveBytesOfModel(LiveBytesOfRank):
    """The bytes of a rank but for FSDP2's: gathered parameters, shards of gradients, and buffers of its collectives.

    Attributes:
        collectives: how many there were.
    """

    def __init__(self):
        super().__init__()
        self.collectives = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = super().__torch_dispatch__(func, types, args, kwargs)
        waits = func is torch.ops._c10d_functional.wait_tensor.default
        self.collectives += func.namespace in ("c10d", "_c10d_functional") and not waits
        return out

    @staticmethod
    def is_counted(tensor):
        return LiveBytesOfRank.is_counted(tensor) and not _called_by_fsdp()


def _called_by_fsdp():
    frame = sys._getframe(1)
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("torch.distributed.fsdp"):
        frame = frame.f_back
    return frame is not None


class NetWithLoss(Net):
    def forward(self, tokens):
        return F.cross_entropy(super().forward(tokens).flatten(0, 1), tokens.flatten())


def make(case, mesh):
    way, arguments, _, _ = CASES[case]
    torch.manual_seed(0)
    model = NetWithLoss(BLOCKS)
    if way is not None:
        parallelize_module(model, mesh["tp"], describe(way, BLOCKS))
    for block in model.blocks:
        fully_shard(block, mesh=mesh["data"], **arguments)
    return fully_shard(model, mesh=mesh["data"], **arguments)


def step(model, case, mesh):
    """The losses of a step's batches. Ranks along ``data`` have different batches."""
    _, _, rows, batches = CASES[case]
    losses = []
    for number in range(batches):
        seed = 10 * mesh.get_local_rank("data") + number
        tokens = torch.randint(WORDS, (rows, 32), generator=torch.Generator().manual_seed(seed))
        model.set_requires_gradient_sync(number == batches - 1)
        with loss_parallel():
            loss = model(tokens)
            loss.backward()
        losses.append(whole(loss.detach()).item())
    return losses


def counted(model, case, mesh):
    """The most bytes of a step beyond the gradients that it leaves, and its collectives."""
    model.zero_grad()
    dist.barrier()
    with LiveBytesOfModel() as live:
        step(model, case, mesh)
    return live.peak - count_local(one.grad for one in model.parameters()), live.collectives


def gradients(model):
    return [one.grad.to_local().clone() for one in model.parameters()]


def compare(case, mesh):
    plain, model = make(case, mesh), integrations.compress_model(make(case, mesh), memory=MEMORY, error=0)
    losses = [step(plain, case, mesh), step(model, case, mesh)]
    first = [gradients(plain), gradients(model)]
    bytes_of, collectives = zip(*(counted(one, case, mesh) for one in (plain, model)), strict=True)
    last = [gradients(plain), gradients(model)]
    followed = plan_of(model)
    rows = integrations.compression(model).report().rows
    return {
        "losses": losses,
        "equal": all(all(map(torch.equal, *pair)) for pair in (first, last)),
        "planned": followed.peak,
        "bytes": bytes_of,
        "collectives": collectives,
        "plan": f"{followed.choice.mask:x}",
        "recomputed": sum(row.codec == "recomputed" for row in rows),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("data", "tp"))
    found = {case: compare(case, mesh) for case in CASES}
    found["error"] = refuse("sequence", mesh, memory=0.6, error=0.1)
    found["least"] = refuse("tensor", mesh, memory=0.02, error=0)
    leave(found)
