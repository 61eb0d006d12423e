"""Measures, in a process of its own, the activation peak of a net of convolutions under two plans.

``docs/explanation/native-core.md`` says how. Run with ``MALLOC_MMAP_THRESHOLD_=65536``; prints one JSON object: for the
plan of least peak and for the plain step what was planned, with and without workspaces, and what was measured.
"""

import ctypes
import gc
import json
import sys
from itertools import compress, count
from pathlib import Path

import torch
from recompute_run import run
from torch import nn

from actcore import checkpoint_plans, simulate
from integrations.checkpoint import capture
from integrations.planner.problem import training_step


def layers():
    """2 MiB a tensor: pages of 4 KiB do not count."""
    torch.manual_seed(0)
    yield nn.Conv2d(8, 64, 3, padding=1)
    for _ in range(5):
        yield from (nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.Tanh())
    yield from (nn.AdaptiveAvgPool2d(1), nn.Flatten())


def resident(key):
    found = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(found.split()[1]) * 1024


def peak(forward, model, x):
    """The least of three: what the kernel counts late, or a collection of garbage, only adds."""
    found = []
    for step in range(4):  # the first pays for caches
        model.zero_grad()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = resident("VmRSS")
        forward(x).sum().backward()
        if step:
            found.append(resident("VmHWM") - before - sum(parameter.grad.nbytes for parameter in model.parameters()))
    return min(found)


def main():
    torch.set_num_threads(1)
    model, x = nn.Sequential(*layers()).train(), torch.randn(8, 8, 32, 32)
    graph, without = capture(model, x, measure=True), capture(model, x)
    plans = checkpoint_plans(training_step(graph))
    answer = {}
    for name, plan in (("least", plans.front[0]), ("plain", plans.front[-1])):
        kept, held = (None if of is None else list(compress(count(), of)) for of in (plan.kept, plan.held))
        answer[name] = {
            "planned": plan.peak - graph.gradients,
            "tensors": simulate(training_step(without), plan.kept, plan.held).peak - graph.gradients,
            "measured": peak(run(model, graph, kept, held=held), model, x),
        }
    json.dump(answer, sys.stdout)


main()
