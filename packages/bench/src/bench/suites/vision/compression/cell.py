"""One model in one way, measured in processes of its own.

What a forward leaves and what a step takes at most are counted in two processes on the CPU: the one counts bytes
exactly, the other gives what is freed back at once. On CUDA both counters are in one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import integrations
from bench.errors import DoesNotApply
from bench.models.image_models import CLASSES, MODELS
from bench.models.subject import Case
from bench.runner.child import in_child
from bench.runner.memory import live_bytes, peak_bytes, saved_bytes, standing_peak_bytes
from bench.runner.process_memory import ENVIRONMENT, HEAP_ONLY, Counters, counters, limit_allocation
from bench.suites.vision.compression.peaks import peak_operator
from bench.suites.vision.compression.results import Cell
from bench.suites.vision.memory import graph_bytes
from bench.ways.conversions import WAYS

Counted = Literal["live", "peak", "both"]
Found = TypeVar("Found", bound=Cell)

FEW = 2  # samples of the steps that warm up: what bits the tensors get does not depend on how many there are
WARM_UP = 3  # steps; levels that adapt measure in the second

_PROCESSES: Mapping[str, Mapping[Counted, Mapping[str, str]]] = MappingProxyType(
    {"cpu": {"live": HEAP_ONLY, "peak": ENVIRONMENT}, "cuda": {"both": ENVIRONMENT}}
)


@dataclass(frozen=True)
class Settings:
    """What all cells have in common.

    Attributes:
        device: ``"cpu"`` or ``"cuda"``.
        threads: of torch's operators.
        seed: of weights, inputs and rounding.
        memory_limit: bytes that a process may take on the CPU.
    """

    device: str
    threads: int
    seed: int
    memory_limit: int

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Settings:
        """From what ``dataclasses.asdict`` made of one, in a process that is to measure: it is limited from here on."""
        settings = cls(**content)
        if settings.device == "cpu":
            limit_allocation(settings.memory_limit)
        return settings


Build = Callable[[Cell, Settings], nn.Module]
BatchOf = Callable[[nn.Module, Cell, Settings, int], Case]


def measure(cell: Found, settings: Settings, function: Callable[..., Found]) -> Found:
    """Measures a cell in new processes; a crash of one is said in the answer.

    Args:
        cell: what it is of, without numbers.
        settings: common to all cells.
        function: adds to a cell what can be counted in the process that it is called in.
    """
    options = {"settings": asdict(settings), "threads": settings.threads}
    for counted, environment in _PROCESSES[settings.device].items():
        cell = in_child(function, cell, environment, counted=counted, **options)
        if cell.failure or cell.does_not_apply:
            break
    return cell


def measure_here(cell: Cell, *, settings: Mapping[str, Any], counted: Counted) -> Cell:
    """Measures what ``counted`` says in this process, and adds it to the cell."""
    return measure_made(cell, Settings.of(settings), counted, build, batch_of)


def measure_made(cell: Found, settings: Settings, counted: Counted, build: Build, batch_of: BatchOf) -> Found:
    """Measures what ``counted`` says in this process, and adds it to the cell.

    Args:
        cell: what it is of, and what is known by now.
        settings: common to all cells.
        counted: which of the counters this process can read.
        build: makes the untouched model.
        batch_of: gives it a batch of so many samples, the same at each call.

    Raises:
        DoesNotApply: the way is none for this model.
    """
    way, count = WAYS[cell.way], counters(torch.device(settings.device))
    if isinstance(count, str):
        return replace(cell, failure=count)
    model = build(cell, settings)
    try:
        way.convert(model, settings.seed)
    except ValueError as error:
        raise DoesNotApply(str(error)) from error
    for _ in range(WARM_UP):
        batch_of(model, cell, settings, cell.batch if way.recomputed else min(FEW, cell.batch)).loss().backward()
    case = batch_of(model, cell, settings, cell.batch)
    if counted != "peak":
        cell = _with_live(cell, case, count)
    if counted != "live":
        cell = _with_peaks(cell, case, count)
    return cell


def build(cell: Cell, settings: Settings) -> nn.Module:
    """The model of a cell with random weights, untouched."""
    torch.manual_seed(settings.seed)
    model = MODELS[cell.model].build(CLASSES, cell.size).to(settings.device)
    return model.to(memory_format=torch.channels_last) if cell.channels_last else model


def batch_of(model: nn.Module, cell: Cell, settings: Settings, batch: int) -> Case:
    """A model with random images and classes, the same at each call."""
    torch.manual_seed(settings.seed)
    x, y = torch.randn(batch, 3, cell.size, cell.size), torch.randint(CLASSES, (batch,))
    order = torch.channels_last if cell.channels_last else torch.contiguous_format
    x, y = x.to(settings.device, memory_format=order), y.to(settings.device)
    return Case(model, partial(_loss, model, x, y), f"batch {batch} at {cell.size} x {cell.size}")


def _loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def _with_live(cell: Found, case: Case, count: Counters) -> Found:
    way = WAYS[cell.way]
    live_bytes(case.loss, count)  # pays for the caches of this batch's shapes
    cell = replace(cell, live_bytes=live_bytes(case.loss, count))
    if way.kind == "plain":
        return replace(cell, original_bytes=saved_bytes(case.model, case.loss))
    if way.kind == "layers":
        return replace(cell, stored_bytes=graph_bytes(case.model, case.loss))
    report = integrations.compression(case.model).report()
    return replace(cell, original_bytes=report.original_bytes, stored_bytes=report.stored_bytes)


def _with_peaks(cell: Found, case: Case, count: Counters) -> Found:
    peak = peak_bytes(case.model, case.loss, count)
    standing = standing_peak_bytes(case.loss, count)
    where = peak_operator(case.loss, count)
    return replace(cell, peak_bytes=peak, standing_peak_bytes=standing, peak_in=where)
