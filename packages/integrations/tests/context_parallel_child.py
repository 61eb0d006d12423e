"""One of two ranks, for ``test_context_parallel.py``: a small decoder whose sequence the ranks share.

torch has ring attention for CUDA's kernels only. Here its ring runs with the CPU's kernel: ``ring`` and ``ring_back``
stand in for the functions that torch has for each of CUDA's kernels. In the way "all keys", each rank gathers keys and
values, as torch does for flex attention, which does not train on a CPU: torch's own attention stands in for it.

Prints, as JSON, for each way and level: the losses of a plain and a compressed step, the relative error of all
gradients, and the rows of the report; and what is found of plans, of adaptive bits, and of a bound on the error.
"""

import os
import sys
import warnings
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.distributed.tensor.experimental._context_parallel._attention as context
import torch.nn.functional as F
from machine_rates import recorded
from rank_peak import join_ranks, measure_peak
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.parallel import DistributedDataParallel
from two_ranks import leave

import integrations
from integrations.capture.costs import calibrating

calibrating._measured = recorded  # whether a plan rounds must not depend on how busy this machine is

WIDTH, WORDS, HEADS, LENGTH, BATCH = 64, 128, 4, 64, 8
BLOCKS = 3  # of models with plans. With two, the least memory is that of an exact plan, which has no error to measure
BUDGETS = 1.0, 0.6
KERNEL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
SEQUENCE = 2  # the dimension of the sequence in attention


def ring(op, args, kwargs):
    query, key, value, dropout, causal = (*args, 0.0, False)[: max(len(args), 5)]
    group, tensors = query.device_mesh.get_group(), [one._local_tensor for one in (query, key, value)]
    found = context._templated_ring_attention(group, SEQUENCE, KERNEL, *tensors, causal, dropout_p=dropout, **kwargs)
    return wrap(found, query.device_mesh)


def ring_back(op, args, kwargs):
    *tensors, dropout, causal = args
    mesh, tensors = tensors[0].device_mesh, [one._local_tensor for one in tensors]
    found = context._templated_ring_attention_backward(
        mesh.get_group(), SEQUENCE, BACKWARD, tensors[0], "grad_out", *tensors[1:], causal, dropout_p=dropout, **kwargs
    )
    return wrap(found, mesh)


def wrap(found, mesh):
    return tuple(DTensor.from_local(one, mesh, [Shard(SEQUENCE)], run_check=False) for one in found)


context.custom_ops |= {KERNEL.default: ring, BACKWARD: ring_back}


class Attend(nn.Module):
    """Attention of queries to all keys, or to those before them."""

    causal = True

    def forward(self, query, key, value):
        return F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = Attend()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        query, key, value = self.qkv(self.first(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.out(self.attend(query, key, value).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Net(nn.Module):
    def __init__(self, blocks=2):
        super().__init__()
        self.embedding, self.blocks = nn.Embedding(WORDS, WIDTH), nn.ModuleList(Block() for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


WAYS = "one rank", "context", "context, FSDP2", "all keys, one rank", "all keys"


def make(way, mesh, blocks=2):
    torch.manual_seed(0)
    model = Net(blocks)
    for block in model.blocks if "all keys" in way else ():
        block.attend.causal = False
        if way == "all keys":  # as for flex attention: each rank gathers keys and values
            context._ContextParallel(SEQUENCE, context._ContextParallel.AttentionType.FLEX)._apply(block.attend, mesh)
    if "FSDP2" in way:
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def step(model, way, mesh):
    """The loss of a step; on one rank, with the whole sequences."""
    generator = torch.Generator().manual_seed(1)
    tokens, words = (torch.randint(WORDS, (BATCH, LENGTH), generator=generator) for _ in range(2))
    alone = way.endswith("one rank")
    if way == "all keys":
        tokens, words = (one.chunk(mesh.size(), 1)[mesh.get_local_rank()] for one in (tokens, words))
    ring = way.startswith("context")
    with context_parallel(mesh, buffers=[tokens, words], buffer_seq_dims=[1, 1]) if ring else nullcontext():
        loss = F.cross_entropy(model(tokens).flatten(0, 1), words.flatten())
        loss.backward()
    loss = loss.detach()
    if not alone:
        dist.all_reduce(loss)
        loss /= mesh.size()
    if not alone and "FSDP2" not in way:
        for one in model.parameters():
            dist.all_reduce(one.grad)
            one.grad /= mesh.size()
    return loss.item()


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gradients(model):
    return torch.cat([whole(one.grad).flatten() for one in model.parameters()])


def compare(way, mesh, level, **options):
    plain, model = make(way, mesh), integrations.compress_model(make(way, mesh), level=level, min_bytes=0, **options)
    losses = step(plain, way, mesh), step(model, way, mesh)
    exact, found = gradients(plain), gradients(model)
    other = "all keys, one rank" if "all keys" in way else "one rank"
    step(alone := make(other, mesh), other, mesh)
    report = integrations.compression(model).report()
    return {
        "losses": losses,
        "error": ((found - exact).norm() / exact.norm()).item(),
        "plain error": ((gradients(alone) - exact).norm() / exact.norm()).item(),
        "bytes": [report.original_bytes, report.stored_bytes],
        "exchanged": report.exchanged,
        "rows": [
            (row.module, row.operator, row.role, row.codec, row.original_bytes, row.stored_bytes, row.why)
            for row in report.rows
            if not row.owner
        ],
    }


def measure(model, way, mesh):
    """The most bytes of a step beyond its gradients."""
    model.zero_grad()
    most, left = measure_peak(lambda: step(model, way, mesh))
    gradients = sum(one.grad.nbytes for one in model.parameters())
    assert left == gradients  # the profiler has seen every tensor freed
    return most - gradients


def plan(way, mesh):
    """Of a plain step and of steps with exact plans: losses, whether gradients are equal bit for bit, the peaks,
    planned and measured, and how many saved tensors are recomputed; and what no plan raises."""
    plain = make(way, mesh, BLOCKS)
    loss = step(plain, way, mesh)
    exact = gradients(plain)
    found = {"plain": measure(plain, way, mesh)}
    for memory in BUDGETS:
        model = integrations.compress_model(make(way, mesh, BLOCKS), memory=memory, error=0)
        losses = [loss, step(model, way, mesh)]
        first = gradients(model)
        measured = measure(model, way, mesh)
        rows = integrations.compression(model).report().rows
        found[str(memory)] = {
            "losses": losses,
            "equal": torch.equal(exact, first) and torch.equal(exact, gradients(model)),
            "planned": integrations.checkpoint.plan_of(model).peak,
            "measured": measured,
            "recomputed": sum(row.codec == "recomputed" for row in rows),
        }
    return found


def adapt(way, mesh):
    """At adaptive bits: of a step with the bits that were measured, as ``compare``."""
    plain, model = make(way, mesh), integrations.compress_model(make(way, mesh), level="L2", min_bytes=0)
    for _ in range(3):
        model.zero_grad()
        step(model, way, mesh)
    step(plain, way, mesh)
    handle = integrations.compression(model)
    report, exact = handle.report(), gradients(plain)
    return {
        "measured": handle.plan is not None,
        "error": ((gradients(model) - exact).norm() / exact.norm()).item(),
        "bytes": [report.original_bytes, report.stored_bytes],
    }


def bound(way, mesh):
    """What steps with a bound on the error warn of. They are to end: no rank may take a step that others do not."""
    model = integrations.compress_model(make(way, mesh, BLOCKS), memory="least", error=0.2, fallback="least")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(12):  # the warning comes after the fourth step that cannot be measured, the eleventh
            step(model, way, mesh)
    return [str(one.message) for one in caught if "could not be measured" in str(one.message)]


def refuse(way, mesh):
    """The error of a bound on the error. All ranks are to raise it before any of them communicates."""
    model = integrations.compress_model(make(way, mesh), memory="least", error=0.2)
    try:
        step(model, way, mesh)
    except ValueError as error:
        return str(error)
    return ""


def follow(way, mesh):
    """What the first steps with a plan warn of, in DistributedDataParallel or in FSDP2."""
    model = integrations.compress_model(make(way, mesh, BLOCKS), memory=BUDGETS[-1])
    around = model if "FSDP2" in way else DistributedDataParallel(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            step(around, "context, FSDP2", mesh)  # which averages gradients, too
    return [str(one.message) for one in caught if "captured" in str(one.message)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    join_ranks(sys.argv[1], rank, ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    found = {level: {way: compare(way, mesh, level) for way in WAYS} for level in ("L1", "lean")}
    found["plan"] = {way: plan(way, mesh) for way in ("one rank", "context", "all keys")}
    found["L2"] = {way: adapt(way, mesh) for way in WAYS}
    found["error"] = {way: bound(way, mesh) for way in ("context", "all keys")}
    found["refused"] = {way: refuse(way, mesh) for way in ("context", "all keys")}
    found["chunked"] = {way: compare(way, mesh, "L1", loss={"head": "head"}) for way in WAYS}
    found["followed"] = {way: follow(way, mesh) for way in ("context", "context, FSDP2")}
    leave(found)
