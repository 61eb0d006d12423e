"""One of two ranks, for ``test_pipelines.py``: stages of a pipeline with a memory budget.

Prints, as JSON: of 1F1B under two budgets, each step's peak, the plan's numbers, and whether gradients are those of a
pipeline without compression; by schedule, how many micro-batches the plan of each stage counts, and how many are in
flight; and what is refused.
"""

import copy
import os
import sys
from collections import Counter

import torch
import torch.distributed as dist
from rank_bytes import LiveBytesOfRank
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from two_ranks import leave

import integrations
from integrations.api.handle.forwards_in_flight import ForwardsInFlight

WIDTH, ROWS, MICRO_BATCHES, STEPS = 32, 512, 4, 3
SINGLE = {"1F1B": Schedule1F1B, "GPipe": ScheduleGPipe}
LOOPED = {"interleaved": ScheduleInterleaved1F1B, "zero bubble": ScheduleInterleavedZeroBubble}


class Block(nn.Module):
    """Holds much more than it receives and sends."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 16 * WIDTH), nn.Linear(16 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.sigmoid(torch.tanh(self.up(x))))


def stages(count):
    torch.manual_seed(0)
    return [nn.Sequential(Block(), Block()).train() for _ in range(count)]


def batch(step=0):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(MICRO_BATCHES * ROWS, WIDTH, generator=generator)


def loss_of(output, target):
    return (output - target).square().mean()


def run_step(schedule, rank, given, last=1):
    """A step in which rank 0 has the first stage, and rank ``last`` the last one."""
    targets = {"target": given, "losses": []} if rank == last else {}
    schedule.step(*([given] if rank == 0 else []), **targets, return_outputs=False)


def single(kind, rank, model):
    stage = PipelineStage(model, rank, 2, torch.device("cpu"))
    return kind(stage, MICRO_BATCHES, loss_fn=loss_of)


def train(model, schedule, rank):
    """The peak of each step beyond what is alive after it, and its gradients as bytes."""
    peaks, found = [], []
    batches = [batch(step) for step in range(STEPS)]
    with LiveBytesOfRank() as live:
        for given in batches:
            live.peak = live.read_settled()
            run_step(schedule, rank, given)
            peaks.append(live.peak - live.read_settled())
            found.append([one.grad.numpy().tobytes() for one in model.parameters()])
            model.zero_grad()
    return peaks, found


def peaks_under_budget(rank):
    """Of two budgets of stage 0, which holds two micro-batches; stage 1 holds one, and has the same budget."""
    found = {}
    model = stages(2)[rank]
    _, plain = train(model, single(Schedule1F1B, rank, model), rank)
    both = integrations.plan(stages(2)[0], (batch()[:ROWS],), in_flight=2)
    for name, part in (("tight", 0.05), ("wide", 0.5)):
        memory = int(both.front[0].peak + part * (both.uncompressed_peak - both.front[0].peak))
        model = integrations.compress_model(stages(2)[rank], memory=memory)
        peaks, ours = train(model, single(Schedule1F1B, rank, model), rank)
        plan = integrations.compression(model).plan
        found[name] = {
            "memory": memory,
            "peaks": peaks,
            "in_flight": plan.graph.in_flight,
            "planned": plan.peak,
            "plain": plan.uncompressed_peak,
            "equal": ours == plain,
        }
    return found


def refused(rank):
    """What a stage that is alone in its pipeline raises."""
    found = {}
    model = stages(2)[0]
    for name, arguments in {
        "too little": {"memory": 1000},
        "more than said": {"memory": integrations.plan(model, (batch()[:ROWS],)).uncompressed_peak, "in_flight": 1},
    }.items():
        alone = copy.deepcopy(model)
        integrations.compress_model(alone, **arguments)
        schedule = ScheduleGPipe(
            PipelineStage(alone, 0, 1, torch.device("cpu"), group=ALONE[rank]), MICRO_BATCHES, loss_fn=loss_of
        )
        try:
            run_step(schedule, 0, batch(), last=0)
        except (ValueError, RuntimeError) as error:  # the stage puts what a micro-batch raises into its own error
            found[name] = str(error.__cause__ or error)
    return found


def count(model):
    """How many forwards its plan counts, and how many were in flight."""
    handle = integrations.compression(model)
    return [handle.plan.graph.in_flight, most[handle._plan_manager._in_flight]]


def counted(rank):
    """By schedule: the counts of each stage of this rank."""
    found = {}
    for name, kind in SINGLE.items():
        model = stages(2)[rank]
        integrations.compress_model(model, memory=0.9)
        run_step(single(kind, rank, model), rank, batch())
        found[name] = [count(model)]
    for name, kind in {**LOOPED, "V": ScheduleZBVZeroBubble}.items():
        own = (rank, 3 - rank) if name == "V" else (rank, rank + 2)
        every = stages(4)
        models = [every[number] for number in own]
        for model in models:
            integrations.compress_model(model, memory=0.9)
        parts = [
            PipelineStage(model, number, 4, torch.device("cpu")) for number, model in zip(own, models, strict=True)
        ]
        schedule = kind(parts, MICRO_BATCHES, loss_fn=loss_of)
        run_step(schedule, rank, batch(), last=0 if name == "V" else 1)
        found[name] = [count(model) for model in models]
    return found


most = Counter()
"""By what counts a model's forwards: the most that were in flight."""
start = ForwardsInFlight.start


def noted(self, plans, plan):
    start(self, plans, plan)
    most[self] = max(most[self], len(self._others()))


ForwardsInFlight.start = noted


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
    ALONE = [dist.new_group([one]) for one in range(2)]
    leave({"peaks": peaks_under_budget(rank), "counted": counted(rank), "refused": refused(rank)})
