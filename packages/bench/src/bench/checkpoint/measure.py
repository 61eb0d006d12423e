"""A run of ``python -m bench checkpoint``: model by model, the parts that were asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from bench.checkpoint import memory, step_time
from bench.checkpoint.architectures import ARCHITECTURES, QUICK, Architecture
from bench.checkpoint.contenders import PLAIN, Way
from bench.checkpoint.memory import Job, Settings
from bench.checkpoint.planning import Planner
from bench.checkpoint.record import Record
from bench.checkpoint.results import CheckpointResults, Peak, Planned, StepTimes
from bench.checkpoint.sizes import fitting, small
from bench.checkpoint.targets import left
from bench.errors import BenchError, MissingLibrary, reason
from bench.kernels.clock import threads
from bench.machine import Machine
from bench.networks import needs
from bench.progress import progress
from bench.units import GIB
from integrations import checkpoint
from integrations.checkpoint import Plan

PARTS = ("plan", "memory", "time", "compile")
ROUNDS, LONG_ROUNDS, QUICK_ROUNDS = 5, 3, 2
MEMORY_LIMIT = 16 * GIB
COMPILED = ("resnet50", "bert")
CLOSE = ("resnet50", "bert")  # whose time is measured at many budgets, and drawn

HEAVY = 20.0
"""Modelled seconds of a plain step from which a table's own size is measured in two ways, not in three. It takes about
as long on two cores."""

_PARTS = (0.5,)
_CLOSE_PARTS = (0.75, 0.5, 0.4, 0.35, 0.25)
_COMPILED_PARTS = (0.5, 0.1)
_PACKAGES = ("torch", "actcore", "actcore-integrations")


@dataclass(frozen=True)
class Options:
    """What to run.

    Attributes:
        models: names of ``ARCHITECTURES``.
        parts: of ``PARTS``.
        device: of memory and time.
        threads: of torch's operators.
        memory_limit: bytes that a step's process may take.
        batch, size: of the parts plan and memory, in place of the table's own; ``None``: those.
        compiled: the models of the part compile.
        rounds: of timed steps that count.
        seed: of weights, inputs and gradients.
        quick: whether every part is at a small size.
        json: the file that results are written to, and taken up from.
        channels_last: whether images and kernels are in that order.
    """

    models: Sequence[str]
    parts: Sequence[str]
    device: torch.device
    threads: int
    memory_limit: int
    batch: int | None
    size: int | None
    compiled: Sequence[str]
    rounds: int
    seed: int
    quick: bool
    json: Path | None
    channels_last: bool = False

    def small(self, architecture: Architecture) -> tuple[int, int]:
        """Batch and size of the parts time and compile."""
        found = QUICK.get(architecture.name) if self.quick else None
        return found or small(architecture)

    def full(self, architecture: Architecture) -> tuple[int, int]:
        """Batch and size of the parts plan and memory."""
        batch, size = self.small(architecture) if self.quick else (architecture.batch, architecture.size)
        return self.batch or batch, self.size or size

    @property
    def settings(self) -> Settings:
        """What all processes that measure memory have in common."""
        return Settings(self.device.type, self.threads, self.seed, self.memory_limit, self.channels_last)


def run(options: Options) -> CheckpointResults:
    """Runs the parts, with a progress bar on stderr. What fails is recorded, and the rest goes on.

    Raises:
        BenchError: there is no such device; the file holds other results.
    """
    if options.device.type == "cuda" and not torch.cuda.is_available():
        raise BenchError("device cuda is not there: torch finds no usable GPU; use --device cpu")
    machine = Machine.here(options.device, options.threads, _PACKAGES)
    blank = CheckpointResults(
        machine, options.device.type, options.memory_limit, options.seed, channels_last=options.channels_last
    )
    record = Record(blank, options.json)
    record.update(skipped=[])
    steps = [(name, part) for name in options.models for part in options.parts if _asked(options, name, part)]
    with threads(options.threads), progress("checkpoint", len(steps)) as advance:
        checkpoint.plan(nn.Linear(1, 1), torch.zeros(1, 1))  # pays for what is imported at the first plan
        for name in options.models:
            architecture = ARCHITECTURES[name]
            planner = Planner(architecture, options.settings.setup)
            missing = _missing(architecture)
            if missing:
                record.update(skipped=[*record.results.skipped, f"{name}: {missing}"])
            for part in (part for one, part in steps if one == name):
                start = time.perf_counter()
                if not missing:
                    _RUN[part](architecture, planner, options, record)
                record.update(seconds=record.results.seconds + time.perf_counter() - start)
                advance(f"{name}, {part}")
    return record.results


def _asked(options: Options, name: str, part: str) -> bool:
    return part != "compile" or name in options.compiled


def _missing(architecture: Architecture) -> str:
    """Which library it lacks, and what to do; empty if none."""
    try:
        needs(architecture.library)
    except MissingLibrary as error:
        return str(error)
    return ""


def _plan(architecture: Architecture, planner: Planner, options: Options, record: Record) -> None:
    batch, size = options.full(architecture)
    _record_plan(architecture, planner, batch, size, record)


def _record_plan(architecture: Architecture, planner: Planner, batch: int, size: int, record: Record) -> None:
    if not record.has(Planned(architecture.name, batch, size)):
        record.add(planner.numbers(batch, size))


def _memory(architecture: Architecture, planner: Planner, options: Options, record: Record) -> None:
    batch, size = options.full(architecture)
    try:
        batch = fitting(planner, batch, size, options.memory_limit)
        heavy = planner.at(batch, size).plain_seconds > HEAVY
    except Exception as error:  # without a plan nothing says what fits
        record.add(Peak(architecture.name, PLAIN, batch, size, failure=f"no plan: {reason(error)}"))
        return
    _record_plan(architecture, planner, batch, size, record)
    ways = [Way("plain"), Way("planned")]
    if not heavy:
        ways.append(Way("planned", 0.5 if architecture.published is None else left(architecture.published)))
    if architecture.published is not None and planner.numbers(batch, size).cut < architecture.published.cut:
        ways.append(Way("planned", masks=True))  # what no choice of checkpoints saves, smaller masks may
    _record_peaks(architecture, planner, ways, batch, size, options, record)


def _time(architecture: Architecture, planner: Planner, options: Options, record: Record) -> None:
    batch, size = options.small(architecture)
    _record_plan(architecture, planner, batch, size, record)
    ways = list(_small_ways(architecture, planner.numbers(batch, size)))
    _record_peaks(architecture, planner, [Way("plain"), *ways], batch, size, options, record)
    _record_times(architecture, planner, ways, batch, size, options, record)


def _compile(architecture: Architecture, planner: Planner, options: Options, record: Record) -> None:
    batch, size = options.small(architecture)
    ways = [Way("compiled", part) for part in _COMPILED_PARTS]
    _record_peaks(architecture, planner, [Way("plain"), *ways], batch, size, options, record)
    for way in ways:  # one after another: each forgets what was compiled before
        _record_times(architecture, planner, [way], batch, size, options, record)


_RUN: Mapping[str, Callable[[Architecture, Planner, Options, Record], None]] = {
    "plan": _plan,
    "memory": _memory,
    "time": _time,
    "compile": _compile,
}


def _small_ways(architecture: Architecture, least: Planned) -> Iterator[Way]:
    """At the published cut, whether a plan reaches it or not, and at other budgets that one reaches."""
    yield Way("planned")
    parts = {part for part in (_CLOSE_PARTS if architecture.name in CLOSE else _PARTS) if least.reaches(part)}
    if architecture.published is not None:
        parts.add(left(architecture.published))
    yield from (Way("planned", part) for part in sorted(parts))
    yield Way("blocks")


def _left(
    ways: Sequence[Way],
    planner: Planner,
    batch: int,
    size: int,
    record: Record,
    blank: Callable[..., Peak] | Callable[..., StepTimes],
) -> Iterator[tuple[Way, Plan | None]]:
    """The ways without an entry, with their plans. Where one cannot be planned for, that is recorded."""
    for way in ways:
        if record.has(blank(way=way.name)):
            continue
        try:
            plan = planner.of(way, batch, size)
        except Exception as error:  # whatever one way fails with, others are to be measured
            record.add(blank(way=way.name, failure=reason(error)))
            continue
        yield way, plan


def _record_peaks(
    architecture: Architecture,
    planner: Planner,
    ways: Sequence[Way],
    batch: int,
    size: int,
    options: Options,
    record: Record,
) -> None:
    """Measures the peaks that are not there yet."""
    blank = partial(Peak, architecture.name, batch=batch, size=size)
    least = planner.numbers(batch, size)  # zeros where there is no plan
    warm_up = min(batch, memory.FEW) if least.plain_seconds > memory.LONG else batch
    jobs = []
    for way, plan in _left(ways, planner, batch, size, record, blank):
        planned = planner.with_workspaces(batch, size).plain_peak if way.kind == "plain" and not least.failure else None
        jobs.append(Job(way, batch, size, warm_up, planned if plan is None else plan.peak, plan))
    if warm_up < batch:
        memory.measure(architecture, jobs, options.settings, record.add)
        return
    for job in jobs:  # each in a process of its own: what steps before it leave behind is not little beside small ones
        memory.measure(architecture, [job], options.settings, record.add)


def _record_times(
    architecture: Architecture,
    planner: Planner,
    ways: Sequence[Way],
    batch: int,
    size: int,
    options: Options,
    record: Record,
) -> None:
    """Times the steps that are not there yet."""
    blank = partial(StepTimes, architecture.name, batch=batch, size=size)
    plans = dict(_left(ways, planner, batch, size, record, blank))
    if not plans:
        return
    long = planner.numbers(batch, size).plain_seconds > memory.LONG
    rounds = min(options.rounds, LONG_ROUNDS) if long else options.rounds
    try:
        found = step_time.measure(architecture, batch, size, plans, rounds, options.settings.setup)
    except Exception as error:  # the plain step failed
        found = [blank(way=way.name, failure=reason(error)) for way in (Way("plain"), *plans)]
    for entry in found:
        record.add(entry)
