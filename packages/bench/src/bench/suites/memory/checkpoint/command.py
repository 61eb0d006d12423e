"""``python -m bench checkpoint``: its options, and what is run."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial

import torch
from torch import nn

from bench.errors import reason
from bench.models.architectures import ARCHITECTURES, QUICK
from bench.models.subject import needs
from bench.results.record import Record
from bench.runner.child import Child
from bench.runner.command import Bench, Options, positive, size
from bench.runner.run import Run, begun, progress
from bench.suites.memory.checkpoint import step
from bench.suites.memory.checkpoint.entries import KIND, Peak, Planned, StepTimes
from bench.suites.memory.checkpoint.planning import Planner, fitting, small
from bench.suites.memory.checkpoint.report import REPORT, left
from bench.suites.memory.checkpoint.step import Setup
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

_PARTS = (0.5,)  # of the plain peak, at which a plan is timed
_CLOSE_PARTS = (0.75, 0.5, 0.4, 0.35, 0.25)
_COMPILED_PARTS = (0.5, 0.1)


def options(add: Options) -> None:
    """Those of the command."""
    words = (
        "default: all; plan and memory use the size in a model's table, the others a size at which a step takes "
        "seconds at most"
    )
    add.part(PARTS, quick=[part for part in PARTS if part != "compile"], words=words)
    words = "model, repeatable; default: all; models whose library is not installed are skipped"
    add.many("--model", ARCHITECTURES, words, default=list(ARCHITECTURES), quick=list(QUICK))
    add.add("--batch", type=positive, help="batch size of the parts plan and memory; default: by model")
    add.add("--size", type=positive, help="input size of the parts plan and memory; default: by model")
    words = f"memory that a step may take; larger batches are halved; default: {size_name(MEMORY_LIMIT)}"
    add.add("--memory-limit", type=size, default=MEMORY_LIMIT, help=words)
    words = f"model of the part compile (takes minutes), repeatable; default: {', '.join(COMPILED)}"
    add.many("--compile", ARCHITECTURES, words, default=COMPILED, metavar="MODEL")
    add.number("--rounds", "number of rounds of timed steps", default=ROUNDS, quick=QUICK_ROUNDS)
    add.seed("of weights, inputs and gradients")
    words = "images in the channels-last format, which CPU convolutions do not copy"
    add.add("--channels-last", action="store_true", help=words)
    add.quick(f"{', '.join(QUICK)}, {QUICK_ROUNDS} rounds, all parts at small sizes, none compiled")
    add.files()


def run(asked: argparse.Namespace) -> Record:
    """Runs the parts, with a progress bar on stderr. What fails is recorded, and the rest goes on.

    Raises:
        BenchError: the file holds other results.
    """
    going = begun(KIND, asked)
    models = going.present(asked.models, lambda name: needs(ARCHITECTURES[name].library))
    steps = [(name, part) for name in models for part in asked.parts if part != "compile" or name in asked.compiles]
    with progress("checkpoint", len(steps)) as advance:
        checkpoint.plan(nn.Linear(1, 1), torch.zeros(1, 1))  # pays for what is imported at the first plan
        for name in models:
            model = Measured(name, asked, going)
            for part in (part for one, part in steps if one == name):
                model.parts[part]()
                advance(f"{name}, {part}")
    return going.record


class Measured:
    """An architecture, whose parts are measured where the file has nothing yet.

    Args:
        name: of the architecture.
        asked: the command's options.
        going: the run.
    """

    def __init__(self, name: str, asked: argparse.Namespace, going: Run) -> None:
        self._architecture, self._asked, self._going = ARCHITECTURES[name], asked, going
        self._setup = Setup(torch.device(asked.device), asked.seed, asked.channels_last)
        self._planner = Planner(self._architecture, self._setup)
        self._small = (QUICK.get(name) if asked.quick else None) or small(self._architecture)
        batch, size = self._small if asked.quick else (self._architecture.batch, self._architecture.size)
        self._full = asked.batch or batch, asked.size or size

    @property
    def parts(self) -> Mapping[str, Callable[[], None]]:
        """By name."""
        return {"plan": self._plan, "memory": self._memory, "time": self._time, "compile": self._compile}

    def _plan(self) -> None:
        self._record_plan(*self._full)

    def _memory(self) -> None:
        name, published, (batch, size) = self._architecture.name, self._architecture.published, self._full
        try:
            batch = fitting(self._planner, batch, size, self._asked.memory_limit)
            heavy = self._planner.at(batch, size).plain_seconds > HEAVY
        except Exception as error:  # without a plan nothing says what fits
            self._going.add(Peak(name, PLAIN, batch, size, failure=f"no plan: {reason(error)}"))
            return
        self._record_plan(batch, size)
        ways = [CheckpointWay("plain"), CheckpointWay("planned")]
        if not heavy:
            ways.append(CheckpointWay("planned", 0.5 if published is None else left(published)))
        if published is not None and self._planner.numbers(batch, size).cut < published.cut:
            ways.append(CheckpointWay("planned", masks=True))  # what no choice of checkpoints saves, smaller masks may
        self._record_peaks(ways, batch, size)

    def _time(self) -> None:
        self._record_plan(*self._small)
        ways = list(self._timed_ways(self._planner.numbers(*self._small)))
        self._record_peaks([CheckpointWay("plain"), *ways], *self._small)
        self._record_times(ways, *self._small)

    def _timed_ways(self, least: Planned) -> Iterator[CheckpointWay]:
        """At the published cut, whether a plan reaches it or not, and at other budgets that one reaches."""
        yield CheckpointWay("planned")
        wanted = _CLOSE_PARTS if self._architecture.name in CLOSE else _PARTS
        parts = {part for part in wanted if least.reaches(part)}
        if self._architecture.published is not None:
            parts.add(left(self._architecture.published))
        yield from (CheckpointWay("planned", part) for part in sorted(parts))
        yield CheckpointWay("blocks")

    def _compile(self) -> None:
        ways = [CheckpointWay("compiled", part) for part in _COMPILED_PARTS]
        self._record_peaks([CheckpointWay("plain"), *ways], *self._small)
        for way in ways:  # one after another: each forgets what was compiled before
            self._record_times([way], *self._small)

    def _record_plan(self, batch: int, size: int) -> None:
        if not self._going.has(Planned(self._architecture.name, batch, size)):
            self._going.add(self._planner.numbers(batch, size))

    def _record_peaks(self, ways: Sequence[CheckpointWay], batch: int, size: int) -> None:
        blank = partial(Peak, self._architecture.name, batch=batch, size=size)
        least = self._planner.numbers(batch, size)  # zeros where there is no plan
        warm_up = min(batch, step.FEW) if least.plain_seconds > step.LONG else batch
        options = {"threads": self._asked.threads, **self._going.record.settings}
        with Child() as child:
            for way, plan in self._left(ways, batch, size, blank):
                planned = None if plan is None else plan.peak
                if way.kind == "plain" and not least.failure:
                    planned = self._planner.with_workspaces(batch, size).plain_peak
                entry = blank(way=way.name, planned_bytes=planned, warm_up=warm_up)
                text = None if plan is None else plan.to_json()
                self._going.add(child.measure(step.measure_peak, entry, way=asdict(way), plan=text, **options))
                if warm_up == batch:  # what a small step leaves behind is not little beside the next one
                    child.end()

    def _record_times(self, ways: Sequence[CheckpointWay], batch: int, size: int) -> None:
        blank = partial(StepTimes, self._architecture.name, batch=batch, size=size)
        plans = dict(self._left(ways, batch, size, blank))
        if not plans:
            return
        long = self._planner.numbers(batch, size).plain_seconds > step.LONG
        rounds = min(self._asked.rounds, LONG_ROUNDS) if long else self._asked.rounds
        try:
            found = step.measure_times(self._architecture, batch, size, plans, rounds, self._setup)
        except Exception as error:  # the plain step failed
            found = [blank(way=way.name, failure=reason(error)) for way in (CheckpointWay("plain"), *plans)]
        for entry in found:
            self._going.add(entry)

    def _left(
        self,
        ways: Sequence[CheckpointWay],
        batch: int,
        size: int,
        blank: Callable[..., Peak] | Callable[..., StepTimes],
    ) -> Iterator[tuple[CheckpointWay, Plan | None]]:
        """The ways without an entry, with their plans. Where one cannot be planned for, that is recorded."""
        for way in ways:
            if self._going.has(blank(way=way.name)):
                continue
            try:
                plan = self._planner.of(way, batch, size)
            except Exception as error:  # whatever one way fails with, others are to be measured
                self._going.add(blank(way=way.name, failure=reason(error)))
                continue
            yield way, plan


WHAT = "planned recomputation: peaks, time and gradients"
BENCH = Bench(KIND, WHAT, options, run, REPORT)
