"""Parts ``compiled`` and ``host``: training under ``torch.compile``, each entry measured in processes of its own."""

from __future__ import annotations

import copy
import gc
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from bench.errors import DoesNotApply
from bench.models.subject import Subject
from bench.runner.child import Child
from bench.runner.clock import steps_in_turn
from bench.runner.gradients import relative_error
from bench.runner.memory import step_peak_bytes
from bench.runner.process_memory import ENVIRONMENT
from bench.suites.memory.systems.cell import REPEATS, WARM_UP
from bench.suites.memory.systems.entries import Compiled, Host
from bench.suites.memory.systems.host import call_codecs, make_layers, record_codecs, run_layers
from bench.suites.memory.systems.steps import (
    drops,
    gradient_of,
    make_step,
    require_counters,
    run_fresh,
    set_zero_gradients,
)
from bench.suites.memory.systems.subjects import made
from bench.ways.compiled import COMPILED, COMPILED_WAYS, HOST_WAYS, CompiledWay
from integrations.checkpoint import plan_of
from integrations.planner.errors import BudgetError
from integrations.runtime.compiled.joint_plans import JOINT

LIMIT = 1200.0
"""Seconds that the processes of an entry may take together. Inductor compiles a model for minutes."""

HOST_ROUNDS = 200
"""Timed steps of the tiny layers, which take a few milliseconds each."""

_CACHE = "TORCHINDUCTOR_CACHE_DIR"
_COMPILED = "under torch.compile"  # in the error of a budget that compiled code cannot keep
_NOT_FOLLOWED = "is not followed under torch.compile"  # in the warning of a plan that has no effect

Measured = TypeVar("Measured", Compiled, Host)


@dataclass(frozen=True)
class Request:
    """What to measure of an entry.

    Attributes:
        rounds: of timed steps; 0: none.
        device: ``"cpu"`` or ``"cuda"``.
        seed: of weights and inputs.
        sized: whether to measure the peak.
        compared: whether to measure the gradient's error.
        shared: folder of inductor's cache for all entries of a run.
        own: folder of inductor's cache for this entry, empty at first.
    """

    rounds: int
    device: str
    seed: int
    sized: bool = True
    compared: bool = True
    shared: str = ""
    own: str = ""


class Processes:
    """Measures each entry in processes of its own.

    On a CPU one process times the steps, and another measures the peak under the allocator's setting, which slows steps
    down. The plan is searched again there, for the same bytes.

    Args:
        threads: of torch's operators.
        quick: whether one process measures all of all cells, which saves imports.
    """

    def __init__(self, threads: int, quick: bool = False) -> None:
        self._threads = threads
        self._quick = Child() if quick else None

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        return self

    def __exit__(self, *error: object) -> None:
        if self._quick is not None:
            self._quick.end()
        self._folder.cleanup()

    def measure(self, cell: Compiled, request: Request, seconds: float | None) -> Compiled:
        """Measure a cell; a crash of a process is said in the answer.

        Args:
            cell: which.
            request: what to measure of it, without folders.
            seconds: until the whole run's end; ``None``: there is none. A cell has ``LIMIT`` seconds in any case.

        Raises:
            TooLong: it took longer.
        """
        with self._with_caches(request) as request:
            end = _end(seconds)
            if self._quick is not None:
                return self._asked(self._quick, measure, cell, request, end, self._threads)
            return self._measure_apart(cell, request, end)

    def measure_host(self, entry: Host, request: Request, seconds: float | None) -> Host:
        """Measure the tiny layers in one way, on one thread; see ``measure``."""
        with self._with_caches(request) as request, Child({}) as child:
            return self._asked(child, measure_host, entry, request, _end(seconds), threads=1)

    @contextmanager
    def _with_caches(self, request: Request) -> Iterator[Request]:
        shared = Path(self._folder.name, "shared")
        shared.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._folder.name, ignore_cleanup_errors=True) as own:
            yield replace(request, shared=str(shared), own=own)

    def _measure_apart(self, cell: Compiled, request: Request, end: float) -> Compiled:
        if request.device == "cuda" or not request.rounds:
            return self._asked_once(ENVIRONMENT, cell, request, end)
        found = self._asked_once({}, cell, replace(request, sized=False), end)
        if found.failure or found.does_not_apply:
            return found
        return self._asked_once(ENVIRONMENT, found, replace(request, rounds=0, compared=False), end)

    def _asked_once(self, environment: Mapping[str, str], cell: Compiled, request: Request, end: float) -> Compiled:
        with Child(environment) as child:
            return self._asked(child, measure, cell, request, end, self._threads)

    def _asked(
        self,
        child: Child,
        function: Callable[..., Measured],
        entry: Measured,
        request: Request,
        end: float,
        threads: int,
    ) -> Measured:
        return child.measure(function, entry, end - time.monotonic(), threads=threads, **asdict(request))


def _end(seconds: float | None) -> float:
    """When an entry must be done, on the clock of ``time.monotonic``."""
    return time.monotonic() + (LIMIT if seconds is None else min(LIMIT, seconds))


def measure(cell: Compiled, **options: Any) -> Compiled:
    """Measure a cell in this process.

    Args:
        cell: which.
        **options: of a ``Request``.

    Raises:
        DoesNotApply: the plan's budget cannot be kept.
    """
    request = Request(**options)
    device = torch.device(request.device)
    gc.collect()  # of a cell before
    way = COMPILED_WAYS[cell.way]
    subject = made(cell.subject, request.seed, device)
    cell = replace(cell, what=subject.what)
    with subject.precisely():
        _start_compiler(request, device)
        with _caching_in(request.own):
            step, compile_seconds, why = _compiled_step(way, subject, cell.memory_bytes, request.seed, device)
            cell = replace(cell, not_followed=why)
            if request.sized:
                cell = _with_peak(cell, subject.model, step, device)
            if request.rounds:
                cell = _with_times(cell, request, (subject.model, step), device)
                cell = replace(cell, compile_seconds=compile_seconds if way.compiles else None)
        if request.compared:
            cell = replace(cell, error=_measure_error(cell, request, subject, step, device))
    return cell


def measure_host(entry: Host, **options: Any) -> Host:
    """Measure the tiny layers in one way, in this process.

    Args:
        entry: which way.
        **options: of a ``Request``.
    """
    request = Request(**options)
    device = torch.device(request.device)
    layers, rows = make_layers(request.seed, device)
    eager = copy.deepcopy(layers)
    way = HOST_WAYS[entry.way]
    _start_compiler(request, device)
    with _caching_in(request.own):
        forward = way.ready(layers)
        steps = []
        for model, call in ((eager, eager), (layers, forward)):
            set_zero_gradients(model)  # a plan is for the state of the gradients that it finds
            steps.append(partial(run_layers, call, rows))
        for _ in range(1 + WARM_UP):
            steps[1]()
        plain_seconds, seconds = steps_in_turn(steps, request.rounds, device)
    entry = replace(entry, seconds=seconds, plain_seconds=plain_seconds)
    if not way.level:
        return entry
    calls = record_codecs(way.level, request.seed, device)
    [codec_seconds] = steps_in_turn([partial(call_codecs, calls)], request.rounds, device)
    return replace(entry, codecs=len(calls), codec_seconds=codec_seconds)


def _start_compiler(request: Request, device: torch.device) -> None:
    """Compile a sum, which pays for imports and for what inductor makes once for all models."""
    with _caching_in(request.shared):
        ones = torch.ones(8, device=device, requires_grad=True)
        torch.compile(lambda x: (x + 1).sum())(ones).backward()
    torch._dynamo.reset()


@contextmanager
def _caching_in(folder: str) -> Iterator[None]:
    """Inductor's cache on disk is in a folder; empty: where it is anyway."""
    before = os.environ.get(_CACHE)
    if folder:
        os.environ[_CACHE] = folder
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_CACHE, None)
        else:
            os.environ[_CACHE] = before


def _compiled_step(
    way: CompiledWay, subject: Subject, memory: int | None, seed: int, device: torch.device
) -> tuple[Callable[[], Tensor], float, str]:
    """A step in a way, after the steps in which it is compiled; the seconds that these took beyond the last of them;
    and the warning that a plan is not followed, empty if there is none.

    Raises:
        DoesNotApply: the plan's budget cannot be kept.
    """
    seconds = []
    with way.while_compiling(), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        step = make_step(subject, way.ready(subject.model, memory, subject.blocks), nullcontext, seed)
        try:
            for _ in range(1 + WARM_UP):
                start = time.perf_counter()
                run_fresh(subject.model, step)
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                seconds.append(time.perf_counter() - start)
        except ValueError as error:
            if way.is_planned and (
                isinstance(error, BudgetError) or str(error).startswith("memory ") or _COMPILED in str(error)
            ):
                raise DoesNotApply(str(error)) from error
            raise
    why = next((str(one.message) for one in warned if _NOT_FOLLOWED in str(one.message)), "")
    return step, sum(seconds) - len(seconds) * seconds[-1], why


def _with_peak(cell: Compiled, model: nn.Module, step: Callable[[], Tensor], device: torch.device) -> Compiled:
    """With the measured peak, and that by the plan."""
    count = require_counters(device)
    peaks = [step_peak_bytes(partial(run_fresh, model, step), count) for _ in range(REPEATS)]
    cell = replace(cell, peak_bytes=int(median(peaks)))
    try:
        plan = plan_of(model)
    except ValueError:
        return cell
    return replace(cell, planned_bytes=plan.others[JOINT].peak if JOINT in plan.others else plan.peak)


def _with_times(
    cell: Compiled, request: Request, trained: tuple[nn.Module, Callable[[], Tensor]], device: torch.device
) -> Compiled:
    """With the times of steps and of plain ones that are not compiled, in turn."""
    eager = made(cell.subject, request.seed, device)
    plain = eager.model, make_step(eager, eager.model, nullcontext, request.seed)
    steps = [partial(run_fresh, *one) for one in (plain, trained)]
    plain_seconds, seconds = steps_in_turn(steps, request.rounds, device)
    return replace(cell, seconds=seconds, plain_seconds=plain_seconds)


def _measure_error(
    cell: Compiled, request: Request, subject: Subject, step: Callable[[], Tensor], device: torch.device
) -> float | None:
    """The gradient's relative error to that of the compiled plain model; ``None`` if dropout makes them differ."""
    if not COMPILED_WAYS[cell.way].compiles and drops(subject.model):
        return None
    found = gradient_of(subject.model, partial(run_fresh, subject.model, step))
    torch._dynamo.reset()  # dynamo would find the other model's code
    plain = made(cell.subject, request.seed, device)
    plain_step = make_step(plain, COMPILED_WAYS[COMPILED].ready(plain.model), nullcontext, request.seed)
    with _caching_in(request.shared):
        exact = gradient_of(plain.model, partial(run_fresh, plain.model, plain_step))
    return relative_error(found, exact)
