"""``python -m bench checkpoint``: its options, and what is run."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from bench.cli.arguments import positive, size
from bench.cli.bench import Bench
from bench.cli.options import Options
from bench.errors import reason
from bench.models.architectures import ARCHITECTURES, QUICK, Architecture
from bench.models.libraries import needs
from bench.results.record import Record
from bench.runner.progress import progress
from bench.runner.run import Run, begun
from bench.suites.memory.checkpoint import step
from bench.suites.memory.checkpoint.entries import KIND, Peak, Planned, StepTimes
from bench.suites.memory.checkpoint.planning import Planner, fitting, small
from bench.suites.memory.checkpoint.report import REPORT, left
from bench.suites.memory.checkpoint.step import Job, ProcessSettings
from bench.units import GIB, size_name
from bench.ways.checkpoints import CLOSE, PLAIN, CheckpointWay
from integrations import checkpoint
from integrations.checkpoint import Plan

PARTS = ("plan", "memory", "time", "compile")
ROUNDS, LONG_ROUNDS, QUICK_ROUNDS = 5, 3, 2
MEMORY_LIMIT = 16 * GIB
COMPILED = ("resnet50", "bert")

HEAVY = 20.0
"""Modelled seconds of a plain step from which a table's own size is measured in two ways, not in three. It takes about
as long on two cores."""

_PARTS = (0.5,)
_CLOSE_PARTS = (0.75, 0.5, 0.4, 0.35, 0.25)
_COMPILED_PARTS = (0.5, 0.1)


@dataclass(frozen=True)
class Asked:
    """What all parts are asked for.

    Attributes:
        asked: the command's options.
        settings: what all processes that measure memory have in common.
    """

    asked: argparse.Namespace
    settings: ProcessSettings

    def small(self, architecture: Architecture) -> tuple[int, int]:
        """Batch and size of the parts time and compile."""
        found = QUICK.get(architecture.name) if self.asked.quick else None
        return found or small(architecture)

    def full(self, architecture: Architecture) -> tuple[int, int]:
        """Batch and size of the parts plan and memory."""
        batch, size = self.small(architecture) if self.asked.quick else (architecture.batch, architecture.size)
        return self.asked.batch or batch, self.asked.size or size


def run(asked: argparse.Namespace) -> Record:
    """Runs the parts, with a progress bar on stderr. What fails is recorded, and the rest goes on.

    Raises:
        BenchError: the file holds other results.
    """
    going = begun(KIND, asked)
    options = Asked(asked, ProcessSettings(threads=asked.threads, **going.record.settings))
    models = going.present(asked.models, lambda name: needs(ARCHITECTURES[name].library))
    steps = [(name, part) for name in models for part in asked.parts if _asked(asked, name, part)]
    with progress("checkpoint", len(steps)) as advance:
        checkpoint.plan(nn.Linear(1, 1), torch.zeros(1, 1))  # pays for what is imported at the first plan
        for name in models:
            architecture = ARCHITECTURES[name]
            planner = Planner(architecture, options.settings.setup)
            for part in (part for one, part in steps if one == name):
                _RUN[part](architecture, planner, options, going)
                advance(f"{name}, {part}")
    return going.record


def _asked(asked: argparse.Namespace, name: str, part: str) -> bool:
    return part != "compile" or name in asked.compiled


def _plan(architecture: Architecture, planner: Planner, options: Asked, going: Run) -> None:
    batch, size = options.full(architecture)
    _record_plan(architecture, planner, batch, size, going)


def _record_plan(architecture: Architecture, planner: Planner, batch: int, size: int, going: Run) -> None:
    if not going.has(Planned(architecture.name, batch, size)):
        going.add(planner.numbers(batch, size))


def _memory(architecture: Architecture, planner: Planner, options: Asked, going: Run) -> None:
    batch, size = options.full(architecture)
    try:
        batch = fitting(planner, batch, size, options.settings.memory_limit)
        heavy = planner.at(batch, size).plain_seconds > HEAVY
    except Exception as error:  # without a plan nothing says what fits
        going.add(Peak(architecture.name, PLAIN, batch, size, failure=f"no plan: {reason(error)}"))
        return
    _record_plan(architecture, planner, batch, size, going)
    ways = [CheckpointWay("plain"), CheckpointWay("planned")]
    if not heavy:
        ways.append(CheckpointWay("planned", 0.5 if architecture.published is None else left(architecture.published)))
    if architecture.published is not None and planner.numbers(batch, size).cut < architecture.published.cut:
        ways.append(CheckpointWay("planned", masks=True))  # what no choice of checkpoints saves, smaller masks may
    _record_peaks(architecture, planner, ways, batch, size, options, going)


def _time(architecture: Architecture, planner: Planner, options: Asked, going: Run) -> None:
    batch, size = options.small(architecture)
    _record_plan(architecture, planner, batch, size, going)
    ways = list(_small_ways(architecture, planner.numbers(batch, size)))
    _record_peaks(architecture, planner, [CheckpointWay("plain"), *ways], batch, size, options, going)
    _record_times(architecture, planner, ways, batch, size, options, going)


def _compile(architecture: Architecture, planner: Planner, options: Asked, going: Run) -> None:
    batch, size = options.small(architecture)
    ways = [CheckpointWay("compiled", part) for part in _COMPILED_PARTS]
    _record_peaks(architecture, planner, [CheckpointWay("plain"), *ways], batch, size, options, going)
    for way in ways:  # one after another: each forgets what was compiled before
        _record_times(architecture, planner, [way], batch, size, options, going)


_RUN: Mapping[str, Callable[[Architecture, Planner, Asked, Run], None]] = {
    "plan": _plan,
    "memory": _memory,
    "time": _time,
    "compile": _compile,
}


def _small_ways(architecture: Architecture, least: Planned) -> Iterator[CheckpointWay]:
    """At the published cut, whether a plan reaches it or not, and at other budgets that one reaches."""
    yield CheckpointWay("planned")
    parts = {part for part in (_CLOSE_PARTS if architecture.name in CLOSE else _PARTS) if least.reaches(part)}
    if architecture.published is not None:
        parts.add(left(architecture.published))
    yield from (CheckpointWay("planned", part) for part in sorted(parts))
    yield CheckpointWay("blocks")


def _left(
    ways: Sequence[CheckpointWay],
    planner: Planner,
    batch: int,
    size: int,
    going: Run,
    blank: Callable[..., Peak] | Callable[..., StepTimes],
) -> Iterator[tuple[CheckpointWay, Plan | None]]:
    """The ways without an entry, with their plans. Where one cannot be planned for, that is recorded."""
    for way in ways:
        if going.has(blank(way=way.name)):
            continue
        try:
            plan = planner.of(way, batch, size)
        except Exception as error:  # whatever one way fails with, others are to be measured
            going.add(blank(way=way.name, failure=reason(error)))
            continue
        yield way, plan


def _record_peaks(
    architecture: Architecture,
    planner: Planner,
    ways: Sequence[CheckpointWay],
    batch: int,
    size: int,
    options: Asked,
    going: Run,
) -> None:
    """Measures the peaks that are not there yet."""
    blank = partial(Peak, architecture.name, batch=batch, size=size)
    least = planner.numbers(batch, size)  # zeros where there is no plan
    warm_up = min(batch, step.FEW) if least.plain_seconds > step.LONG else batch
    jobs = []
    for way, plan in _left(ways, planner, batch, size, going, blank):
        planned = planner.with_workspaces(batch, size).plain_peak if way.kind == "plain" and not least.failure else None
        jobs.append(Job(way, batch, size, warm_up, planned if plan is None else plan.peak, plan))
    if warm_up < batch:
        step.measure_peaks(architecture, jobs, options.settings, going.add)
        return
    for job in jobs:  # each in a process of its own: what steps before it leave behind is not little beside small ones
        step.measure_peaks(architecture, [job], options.settings, going.add)


def _record_times(
    architecture: Architecture,
    planner: Planner,
    ways: Sequence[CheckpointWay],
    batch: int,
    size: int,
    options: Asked,
    going: Run,
) -> None:
    """Times the steps that are not there yet."""
    blank = partial(StepTimes, architecture.name, batch=batch, size=size)
    plans = dict(_left(ways, planner, batch, size, going, blank))
    if not plans:
        return
    long = planner.numbers(batch, size).plain_seconds > step.LONG
    rounds = min(options.asked.rounds, LONG_ROUNDS) if long else options.asked.rounds
    try:
        found = step.measure_times(architecture, batch, size, plans, rounds, options.settings.setup)
    except Exception as error:  # the plain step failed
        found = [blank(way=way.name, failure=reason(error)) for way in (CheckpointWay("plain"), *plans)]
    for entry in found:
        going.add(entry)


def options(add: Options) -> None:
    """Those of the command."""
    words = (
        "default: all; plan and memory are at the size of a model's table, the others at one at which a step takes "
        "seconds at most"
    )
    add.part(PARTS, quick=[part for part in PARTS if part != "compile"], words=words)
    words = "repeatable; default: all; those whose library is not installed are left out"
    add.many("--model", ARCHITECTURES, words, default=list(ARCHITECTURES), quick=list(QUICK))
    add.add("--batch", type=positive, help="of the parts plan and memory; default: by model")
    add.add("--size", type=positive, help="of the parts plan and memory; default: by model")
    words = size_name(MEMORY_LIMIT).replace(" ", "")
    words = f"that a step may take; batches that need more are halved; default: {words}"
    add.add("--memory-limit", type=size, default=MEMORY_LIMIT, help=words)
    words = f"of the part compile, which takes minutes, repeatable; default: {', '.join(COMPILED)}"
    add.many("--compile", ARCHITECTURES, words, default=COMPILED, metavar="MODEL")
    add.number("--rounds", "of timed steps", default=ROUNDS, quick=QUICK_ROUNDS)
    add.seed("of weights, inputs and gradients")
    words = "images in that order, in which CPU convolutions copy nothing"
    add.add("--channels-last", action="store_true", help=words)
    add.quick(f"{', '.join(QUICK)}, {QUICK_ROUNDS} rounds, all parts at small sizes, none compiled")
    add.device()
    add.threads(torch.get_num_threads())
    add.json(", one by one; what the file has is not measured again")
    add.chart()


def settle(asked: argparse.Namespace) -> None:
    """Names the models of the part compile."""
    asked.compiled = asked.compiles


WHAT = "planned recomputation: peaks, time and gradients"
BENCH = Bench(KIND, WHAT, options, run, REPORT, settle)
