"""Part ``planning``: how long planning takes, how far from its bounds it ends, and what every choice would have given.

No step is taken: models run on fake tensors, and small random steps are numbers alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType

import torch
from torch import nn

import integrations
from actcore import CheckpointPlans, Form, TrainingStep, checkpoint_plans
from bench.models.subject import Subject
from bench.suites.memory.systems.entries import Compared, Planning
from bench.suites.memory.systems.subjects import bert, made

ERROR = 0.1
"""Bound on the gradient's error of the plans."""

PART = 0.3
"""Of plain training's peak, at which the time of a plan is beside its bound."""

STEPS, QUICK_STEPS = 100, 2
"""Random steps of each size."""

DEEP: Mapping[str, Callable[[], Subject]] = MappingProxyType({"bert-deep": partial(bert, 120, 64, 1)})
"""Models of some 3,000 values, which nobody trains here."""

NAMES = ("resnet50", "vit", "bert", "llama", "unet", "gat", *DEEP)
"""The models that are planned for."""

QUICK = ("bert-small",)

OPS = (5, 6, 7)
"""Operators of the random steps."""

_VARIANCE = 0.02
_EVERYTHING = (1 << 40) - 1  # search steps: enough to try every choice of a small training step


def pay_for_imports() -> None:
    """Makes a first plan, which pays for the rates of the machine, and for imports."""
    integrations.plan(nn.Linear(1, 1), torch.zeros(1, 1))


def planned(name: str, seed: int) -> Planning:
    """What planning for a model took. The rates of the machine are measured before."""
    subject = made(name, seed, torch.device("cpu")) if name not in DEEP else DEEP[name]()
    given = subject.inputs
    args, kwargs = ((), dict(given)) if isinstance(given, Mapping) else (given, None)
    plan = integrations.plan(subject.model.train(), args, kwargs, error=ERROR, measure=False)
    graphs = [
        (plan.graph, plan.candidates),
        *([] if plan.rounded is None else [(plan.rounded, plan.rounded_candidates)]),
    ]
    options = sum(len(row) for _, candidates in graphs if candidates is not None for row in candidates.options)
    allowed = [choice for choice in plan.front if choice.peak <= PART * plan.plain_peak]
    best = allowed[-1] if allowed else None
    return Planning(
        name,
        subject.what,
        sum(len(graph.values) for graph, _ in graphs),
        options,
        len(plan.front),
        plan.capture_seconds,
        plan.search_seconds,
        plan.front[0].peak / max(plan.peak_bound, 1),
        (plan.plain_seconds + best.seconds) / (plan.plain_seconds + best.seconds_bound) if best else None,
    )


def compared(ops: int, steps: int, seed: int) -> Compared:
    """The search beside every choice, of so many random steps with so many operators.

    A step counts where not every choice was tried anyway; the ratios are the worst of all steps and of all plans that
    nothing beats: of peaks in the same time, and of a step's time in the same peak.
    """
    tried, peaks, times = 0, [1.0], [1.0]
    for number in range(steps):
        step = random_step(random.Random(1000 * ops + 100_000 * seed + number), ops)
        found = checkpoint_plans(step, max_steps=_usual(step), variance=_VARIANCE)
        if found.exact:
            continue
        every = checkpoint_plans(step, max_steps=_EVERYTHING, variance=_VARIANCE)
        assert every.exact
        tried += 1
        for peak, seconds in _ratios(step, found, every):
            peaks.append(peak)
            times.append(seconds)
    return Compared(ops, steps, tried, max(peaks), max(times))


def _usual(step: TrainingStep) -> int:
    """A tenth of the steps that are usual, so that not every choice of a small step is tried."""
    return 3000 * (2 * len(step.reads) + len(step.backward) + len(step.nbytes))


def _ratios(step: TrainingStep, found: CheckpointPlans, every: CheckpointPlans) -> Iterator[tuple[float, float]]:
    whole = sum(step.seconds)
    for best in every.front:
        fast = [plan.peak for plan in found.front if plan.seconds <= best.seconds * (1 + 1e-12)]
        small = [plan.seconds for plan in found.front if plan.peak <= best.peak]
        yield (
            fast[0] / best.peak if fast else float("inf"),
            (whole + small[-1]) / (whole + best.seconds) if small else 1.0,
        )


def random_step(draw: random.Random, ops: int) -> TrainingStep:
    """A chain with skips, each value of which may be made again, or wait in two forms."""
    sizes = [draw.randint(1, 99) for _ in range(ops)]
    reads = [sorted({op - 1, draw.randrange(op)}) if op else [] for op in range(ops)]
    return TrainingStep(
        nbytes=sizes,
        reads=reads,
        makes=[[op] for op in range(ops)],
        seconds=[9 * draw.random() for _ in range(ops)],
        backward=[sorted({op, *reads[op]}) for op in reversed(range(ops))],
        other=[draw.randint(0, 20) for _ in range(2 * ops)],
        forms=[[_form(draw, size, bits) for bits in draw.sample((2, 4, 8), 2)] for size in sizes],
        weights=[draw.random() for _ in sizes],
    )


def _form(draw: random.Random, size: int, bits: int) -> Form:
    """Like so many bits of an element."""
    seconds = draw.random()
    return Form(size * bits // 32, size, 0, seconds, seconds / 2, 0.3 * 4.0**-bits, serves=draw.random() < 0.75)
