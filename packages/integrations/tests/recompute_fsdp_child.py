"""One of two ranks, for ``test_recompute_fsdp.py``: models with a plan under ``fully_shard``, beside plain ones.

Prints, as JSON, for each case whether the rank found everything equal bit for bit, and how often each gathered
parameters.
"""

import dataclasses
import functools
import os
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.nn.functional import dropout, gelu
from torch.utils.checkpoint import checkpoint
from two_ranks import leave

from integrations import compress_model
from integrations.capture.graphs.sharding import find_units
from integrations.checkpoint import apply, capture, plan
from integrations.checkpoint.applied import plan_of


class Block(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.norm, self.one, self.two = nn.LayerNorm(width), nn.Linear(width, 32), nn.Linear(32, width)

    def forward(self, x):
        return x + dropout(self.two(gelu(self.one(self.norm(x)))), 0.1)


class Model(nn.Module):
    """Blocks between tied embeddings."""

    def __init__(self, checkpointed=False, looks=False):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.blocks = nn.Embedding(11, 16), nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(16, 11, bias=False)
        self.head.weight = self.words.weight
        self.checkpointed, self.looks = checkpointed, looks

    def forward(self, tokens):
        x = self.words(tokens).sin()
        if self.looks and x.sum().item() > 1e9:
            return x
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(x.exp().sin()).cos()


MIXED = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
PLANNED_AFTER = ("blocks", "nested", "mixed", "checkpointed")
CASES = {  # units, arguments of fully_shard, and what else is special
    "blocks": ("blocks", {}, ""),
    "root": ("root", {}, ""),
    "linear": ("linear", {}, ""),
    "nested": ("nested", {"reshard_after_forward": True}, ""),
    "group": ("group", {}, ""),
    "mixed": ("blocks", MIXED, ""),
    "no reshard": ("blocks", {"reshard_after_forward": False}, ""),
    "accumulated": ("blocks", {}, "accumulated"),
    "two forwards": ("nested", {}, "two forwards"),
    "checkpointed": ("blocks", {}, "checkpointed"),
}


def cut(model, units, arguments):
    mesh = init_device_mesh("cpu", (2,))
    for block in model.blocks:
        if units in ("linear", "nested"):
            fully_shard(block.one, mesh=mesh, **arguments)
        if units == "linear":
            fully_shard(block.two, mesh=mesh, **arguments)
        if units in ("blocks", "nested"):
            fully_shard(block, mesh=mesh, **arguments)
        if units == "group":
            fully_shard([block.norm, block.one, block.two], mesh=mesh, **arguments)
    return fully_shard(model, mesh=mesh, **arguments)


def tokens(rank, rows=4):
    return (torch.arange(rows * 7).reshape(rows, 7) * (rank + 1)) % 11


@functools.cache
def plan_of_whole(rank, checkpointed=False):
    """Of the model before it is cut."""
    return keeping_nothing(plan(Model(checkpointed).train(), tokens(rank)))


def keeping_nothing(made):
    """The plan that keeps only what it has to."""
    return dataclasses.replace(made, choice=dataclasses.replace(made.choice, mask=0))


def with_plan(model, *inputs):
    return apply(model, keeping_nothing(plan(model, inputs)))


class Gathers:
    """Counts what ranks gather."""

    def __init__(self):
        self.count, self._gather = 0, dist.all_gather_into_tensor

    def __enter__(self):
        dist.all_gather_into_tensor = self._counted
        return self

    def _counted(self, *args, **kwargs):
        self.count += 1
        return self._gather(*args, **kwargs)

    def __exit__(self, *error):
        dist.all_gather_into_tensor = self._gather


def trained(model, rank, special=""):
    """What some steps leave, and how often they gathered."""
    torch.manual_seed(rank + 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    found = []
    with Gathers() as gathers:
        for step in range(4 if special == "accumulated" else 2):
            last = special != "accumulated" or step % 2 == 1
            model.set_requires_gradient_sync(last)
            loss = model(tokens(rank)).float().square().mean()
            if special == "two forwards":
                loss = loss + model(tokens(rank + 2)).float().square().mean()
            loss.backward()
            if last:
                found += [parameter.grad.to_local().clone() for parameter in model.parameters()]
                optimizer.step()
                optimizer.zero_grad()
    return [*found, torch.get_rng_state()], gathers.count


def equal(ours, plain):
    return len(ours) == len(plain) and all(torch.equal(*pair) for pair in zip(ours, plain, strict=True))


def case(name, rank):
    """Of a plan that was made before the model was cut, and of one that was made afterwards."""
    units, arguments, special = CASES[name]
    checkpointed = special == "checkpointed"

    def model():
        return Model(checkpointed).train()

    plain, gathered = trained(cut(model(), units, arguments), rank, special)
    models = {"before": cut(apply(model(), plan_of_whole(rank, checkpointed)), units, arguments)}
    if name in PLANNED_AFTER:
        models["after"] = with_plan(cut(model(), units, arguments), tokens(rank))
    found = {}
    for when, current in models.items():
        repeated = plan_of(current).schedule.within(find_units(current)).recomputed
        ours, count = trained(current, rank, special)
        found[when] = [equal(ours, plain), count - gathered, bool(repeated)]
    return found


def parts_with_plans(rank):
    """Each block has a plan of its own."""
    made = keeping_nothing(plan(Block().train(), torch.ones(4, 7, 16, requires_grad=True)))
    model = Model().train()
    for block in model.blocks:
        apply(block, made)
    found = trained(cut(model, "blocks", {}), rank)[0]
    return equal(found, trained(cut(Model().train(), "blocks", {}), rank)[0])


def different_plans(rank):
    """One rank recomputes what it may, and the other nothing, as ranks may of which one has gradients already."""
    made = plan_of_whole(rank).within(1.0) if rank else plan_of_whole(rank)
    assert bool(made.schedule.recomputed) == (rank == 0)
    plain = trained(cut(Model().train(), "blocks", {}), rank)
    ours = trained(cut(apply(Model().train(), made), "blocks", {}), rank)
    return equal(ours[0], plain[0]) and ours[1] == plain[1]


def after_an_error(rank):
    """A forward that ends with an error leaves nothing; what it leaves of torch's own, torch resets since 2.15."""

    def seasoned(model):
        hook = cut(model, "blocks", {}).blocks[1].register_forward_pre_hook(lambda module, args: 1 / 0)
        before = [dict(module._forward_pre_hooks) for module in model.modules()]
        try:
            model(tokens(rank))
        except ZeroDivisionError:
            assert [dict(module._forward_pre_hooks) for module in model.modules()] == before
            hook.remove()
        if hasattr(model, "reset_iter_state"):
            model.reset_iter_state()
            return trained(model, rank)[0]
        return []

    return equal(seasoned(apply(Model().train(), plan_of_whole(rank))), seasoned(Model().train()))


def other_inputs(rank):
    """The model plans for larger inputs in the middle of its forward, and follows its plan for smaller ones."""
    larger = with_plan(cut(Model().train(), "blocks", {}), tokens(rank, 2))
    smaller = apply(cut(Model().train(), "blocks", {}), keeping_nothing(plan(Model().train(), tokens(rank, 6))))
    plain = trained(cut(Model().train(), "blocks", {}), rank)[0]
    found = [equal(trained(model, rank)[0], plain) for model in (larger, smaller)]
    return found == [True, True] and plan_of(larger).graph.inputs.shapes == ((4, 7),)


def by_values(rank, error):
    """Stores of the model's values are planned for in front of its first forward, before or after it is cut."""
    stores = ("exact", "bits", "slopes") if error else None
    plain = trained(cut(Model().train(), "blocks", {}), rank)[0]
    asked = {"memory": 0.9, "error": error, "stores": stores, "min_bytes": 0}
    models = [
        cut(compress_model(Model().train(), **asked), "blocks", {}),
        compress_model(cut(Model().train(), "blocks", {}), **asked),
    ]
    found = []
    for model in models:
        ours = trained(model, rank)[0]
        off = max(float((one - other).norm() / other.norm()) for one, other in zip(ours[:-1], plain[:-1], strict=True))
        rounds = plan_of(model).choice.rounds
        found.append(rounds and 0 < off < 1 if error else equal(ours, plain))
    return all(found)


def graphs(rank):
    """The graph of a cut model is that of a whole one but for what has to be kept, and in mixed precision it is of the
    dtype that is computed with."""
    whole, parts = plan_of_whole(rank).graph, capture(cut(Model().train(), "blocks", {}), tokens(rank))
    mixed = capture(cut(Model().train(), "blocks", MIXED), tokens(rank))
    with torch.device("meta"):
        model = Model().train()
    meta = capture(cut(model, "blocks", {}), tokens(rank))
    last = len(whole.values) - 1
    return (
        whole.fingerprint == parts.fingerprint == mixed.fingerprint == meta.fingerprint
        and [op.name for op in whole.ops] == [op.name for op in parts.ops] == [op.name for op in mixed.ops]
        and whole.values == parts.values == meta.values
        and parts.ops == meta.ops
        and sum(op.repeatable for op in parts.ops) < sum(op.repeatable for op in whole.ops)
        and mixed.values[last].nbytes * 2 == whole.values[last].nbytes
    )


def refused(rank):
    """What a model says that needs real tensors, and what backward says that finds parameters cut by the older FSDP."""
    said = []
    try:
        plan(cut(Model(looks=True).train(), "blocks", {}), tokens(rank))
    except ValueError as error:
        said.append(str(error))
    layers = nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh()
    model = with_plan(nn.Sequential(*layers).train(), torch.ones(4, 16))
    for number in (0, 2):
        model[number] = FullyShardedDataParallel(model[number], device_id=torch.device("cpu"))
    try:
        FullyShardedDataParallel(model, device_id=torch.device("cpu"))(torch.ones(4, 16)).sum().backward()
    except RuntimeError as error:
        said.append(str(error))
    return said


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.filterwarnings("error", ".*not the one that was captured")
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
    found = {name: case(name, rank) for name in CASES}
    found["error"] = after_an_error(rank)
    found["different"] = different_plans(rank)
    found["parts"] = parts_with_plans(rank)
    found["other inputs"] = other_inputs(rank)
    found["values"] = by_values(rank, 0) and by_values(rank, 0.2)
    found["graphs"] = graphs(rank)
    found["plan"] = [f"{choice.mask:x}" for choice in plan_of_whole(rank).front]
    found["title"] = str(plan(cut(Model().train(), "root", {}), tokens(rank))).split()[0]
    found["refused"] = refused(rank)
    leave(found)
