"""One of two ranks, for ``test_recompute_distributed.py``: models with a plan under DistributedDataParallel, beside
plain ones.

Prints, as JSON, for each case whether the rank found everything equal bit for bit, and what the ranks are to agree on.
"""

import dataclasses
import os
import sys
import warnings
from dataclasses import replace
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from two_ranks import leave

from integrations import compress_model, compression
from integrations.api.handle import plan_manager
from integrations.capture.costs.rates import constant
from integrations.checkpoint import apply, plan
from integrations.planner import plan_with_stores
from integrations.planner.sensitivity import ranks

OPTIONS = {
    "plain": {},
    "static_graph": {"static_graph": True, "bucket_cap_mb": 0.001},
    "find_unused_parameters": {"find_unused_parameters": True},
    "gradient_as_bucket_view": {"gradient_as_bucket_view": True},
    "no_sync": {"gradient_as_bucket_view": True},
}


class Model(nn.Module):
    """BatchNorm, dropout, an activation in place, and one layer that is not used."""

    def __init__(self, unused):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(16, 16), nn.Linear(16, 16)
        self.unused = nn.Linear(16, 16) if unused else None
        self.norm, self.drop, self.act = nn.BatchNorm1d(16), nn.Dropout(0.3), nn.ReLU(inplace=True)

    def forward(self, x):
        return self.two(self.drop(self.act(self.norm(self.one(x))))).tanh().exp().sin()


def collective(kind):
    """A model whose forward talks to the other rank."""

    def forward(model, x):
        y = (x * model.weight).exp()
        total = y.detach().sum(0)
        if kind == "in place":
            dist.all_reduce(total)
        elif kind == "differentiable":
            total = differentiable.all_reduce(y.sum(0))
        elif kind == "functional":
            total = functional.all_reduce(total, "sum", dist.group.WORLD)
        else:
            parts = [torch.empty(16), torch.empty(16)]
            dist.all_gather(parts, total)
            total = parts[0].exp() * parts[1]
        return (y / (1 + total)).sin().exp()

    model = nn.Module()
    model.weight = nn.Parameter(torch.linspace(-1, 1, 16))
    model.forward = forward.__get__(model)
    return model.train()


def inputs(rank, rows=8):
    return torch.randn(rows, 16, generator=torch.Generator().manual_seed(rank))


def with_plan(model, rank):
    """The plan that keeps only what it has to."""
    made = plan(model, inputs(rank))
    return apply(model, dataclasses.replace(made, choice=dataclasses.replace(made.choice, mask=0)))


def trained(model, x, synchronise=lambda model, step: True):
    """What three steps leave."""
    torch.manual_seed(dist.get_rank() + 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    found = []
    for step in range(4):
        if not synchronise(model, step):
            with model.no_sync():
                model(x).square().mean().backward()
            continue
        model(x).square().mean().backward()
        found += [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        optimizer.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)
    return [*found, *(buffer.clone() for buffer in model.buffers()), torch.get_rng_state()]


def equal(ours, plain):
    return len(ours) == len(plain) and all(torch.equal(*pair) for pair in zip(ours, plain, strict=True))


def wrapped(case, rank, planned):
    unused = OPTIONS[case].get("find_unused_parameters", False)
    model = Model(unused).train()
    if planned == "before":
        with_plan(model, rank)
    outer = DistributedDataParallel(model, **OPTIONS[case])
    if planned == "after":
        with_plan(model, rank)
    return outer


def layers():
    torch.manual_seed(0)
    return [layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.Tanh())]


def bounded(rank, rows, outer=DistributedDataParallel, steps=2, first=None):
    """The plan that a rank follows after some steps within bounds, where each rank has measured other rates."""
    model = nn.Sequential(*([] if first is None else [first]), *layers()).train()
    compress_model(model, memory=0.6, error=0.2, stores=("bits",))

    def measured(device, dtype):
        return replace(constant(device, dtype), product=1e11 * (1 + rank))

    net = outer(model)
    with patch.object(plan_with_stores, "calibrated", measured):
        for step in range(steps):
            model.zero_grad()
            size = rows[step] if isinstance(rows, list) else rows
            x = torch.randn(size, 64, generator=torch.Generator().manual_seed(rank))
            try:
                made = net(x)
            except MemoryError:  # the next forward plans again
                made = net(x)
            made.square().mean().backward()
    return compression(model)


def followed(handle):
    """What a rank follows, and has measured."""
    made = handle.plan
    measured = None if handle.measured is None else handle.measured.relative
    return None if made is None else [*map(str, made.choice.stores), measured]


def measured_unevenly(rank):
    """What ranks have measured, of which rank 0 takes its state after each step and runs the model alone once. Later
    inputs have other shapes."""
    model = nn.Sequential(*layers()).train()
    compress_model(model, memory="least", error=0.2)
    net = DistributedDataParallel(model)
    found = []
    for step in range(13):
        size = 1024 if step < 6 else 1024 - 100 * rank
        x = torch.randn(size, 64, generator=torch.Generator().manual_seed(rank))
        if rank == 0 and step == 5:
            model(x).square().mean().backward()
        model.zero_grad()
        net(x).square().mean().backward()
        if rank == 0:
            compression(model).state_dict()
        measured = compression(model).measured
        found.append(None if measured is None else [measured.step, measured.relative])
    return found


class Means(nn.Module):
    """What all ranks have in the mean, and the means that were seen."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        total = x.detach().sum()
        dist.all_reduce(total)
        if type(total) is torch.Tensor:
            self.seen.append(total.item())
        return x + total / 1e6


def talking(rank):
    """Plans of a model whose forward talks, of which rank 0 meets larger inputs in its third step, the means that it
    has seen, and how often the ranks asked each other."""
    means, asked = Means(), []

    def counted(*given):
        asked.append(given)
        return ranks.ranks_in_sync(*given)

    with patch.object(plan_manager, "ranks_in_sync", counted):
        made = bounded(rank, [1024, 1024, 2048 if rank == 0 else 1024, 1024], steps=4, first=means)
    measured = None if made.measured is None else made.measured.relative
    return [measured, str(made._plan_manager.measuring), len(means.seen), len(asked)]


def failing(rank, failed):
    """Return the plan of a rank if planning fails once on one of both ranks, and the number of its attempts."""
    real, calls = plan_manager.planned, []

    def fails_once(*given, **named):
        calls.append(given)
        if rank == failed and len(calls) == 1:
            raise MemoryError("no room")
        return real(*given, **named)

    with patch.object(plan_manager, "planned", fails_once):
        return [followed(bounded(rank, 1024, steps=1)), len(calls)]


def refused(rank):
    """What is raised where nothing is within the bounds."""
    model = nn.Sequential(*layers()).train()
    compress_model(model, memory="1B", error=0.0)
    try:
        DistributedDataParallel(model)(torch.randn(1024, 64))
    except ValueError as error:
        return str(error)


def main(rank):
    found = {"bounded": followed(bounded(rank, 1024)), "talking": talking(rank), "refused": refused(rank)}
    found["failing"] = [failing(rank, failed) for failed in range(2)]
    found["measured unevenly"] = measured_unevenly(rank)
    found["bounded, uneven"] = followed(bounded(rank, 1024 + 512 * rank)) is not None
    if rank == 0:  # as in a pipeline, where the other rank waits for what this one sends
        found["alone"] = followed(bounded(rank, 1024, outer=lambda model: model)) is not None
    dist.barrier()
    for case in OPTIONS:
        synchronise = (lambda model, step: step % 2 == 1) if case == "no_sync" else (lambda model, step: True)
        plain = trained(wrapped(case, rank, ""), inputs(rank), synchronise)
        for planned in ("before", "after"):
            ours = trained(wrapped(case, rank, planned), inputs(rank), synchronise)
            found[f"{case}, {planned}"] = equal(ours, plain)
    uneven = [trained(wrapped("plain", rank, planned), inputs(rank, 5 + 3 * rank)) for planned in ("before", "")]
    found["uneven"] = equal(*uneven)
    for kind in ("in place", "differentiable", "functional", "gathered"):
        ours, plain = (trained(model, inputs(rank)) for model in (with_plan(collective(kind), rank), collective(kind)))
        found[kind] = equal(ours, plain)
    made = plan(Model(False).train(), inputs(rank), budget=0.7)
    found["plan"] = [f"{made.choice.mask:x}", made.peak, made.graph.fingerprint]
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.filterwarnings("error", ".*not the one that was captured")
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
    found = main(rank)
    leave(found)
