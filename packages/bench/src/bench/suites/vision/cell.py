"""One model in one way, measured in processes of its own.

What a forward leaves and what a step takes at most are counted in two processes on the CPU: the one counts bytes
exactly, the other gives what is freed back at once. On CUDA both counters are in one.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import integrations
from bench.errors import DoesNotApply, reason
from bench.models.dense import DENSE
from bench.models.image_models import CLASSES, MODELS
from bench.models.networks import resnet50
from bench.models.subject import Case
from bench.runner.child import in_child
from bench.runner.gradients import relative_error
from bench.runner.memory import PLAIN as UNTOUCHED
from bench.runner.memory import (
    Memory,
    live_bytes,
    measured_twice,
    peak_bytes,
    saved_bytes,
    standing_peak_bytes,
    step_bytes,
)
from bench.runner.process_memory import ENVIRONMENT, HEAP_ONLY, Counters, counters, limit_allocation
from bench.suites.vision.entries import Cell, DenseCell
from bench.ways.conversions import PLAIN, WAYS
from integrations import qmodules

MODEL, BATCH = "resnet50", 16

_WARM_UP = 3  # steps; layers have bits of their own from the second on


def measure_levels(levels: Sequence[str], threads: int) -> list[Memory]:
    """Measures ResNet-50 with torch's own layers and at each level.

    ``stored_bytes`` are those of the tensors in autograd's graph; live bytes are the allocator's.
    """
    return measured_twice(measure_resnet50, [Memory(MODEL, level) for level in (UNTOUCHED, *levels)], threads=threads)


def measure_resnet50(entry: Memory) -> Memory:
    """Measures ResNet-50 in this process.

    Raises:
        MissingLibrary: timm is not installed.
    """
    torch.manual_seed(0)
    return measure_qlayers(entry, resnet50(BATCH))


def measure_qlayers(entry: Memory, case: Case) -> Memory:
    """Measures a model in this process, which has Q-layers in the end."""
    original = saved_bytes(case.model, case.loss)
    if entry.level != UNTOUCHED:
        qmodules.QModule(case.model, entry.level)
    for _ in range(_WARM_UP):
        case.loss().backward()
    live, peak, reason = step_bytes(case.model, case.loss, case.loss, torch.device("cpu"))
    stored = None if entry.level == UNTOUCHED else graph_bytes(case.model, case.loss)
    return replace(
        entry, live_bytes=live, peak_bytes=peak, original_bytes=original, stored_bytes=stored, not_measured=reason
    )


def graph_bytes(network: nn.Module, forward: Callable[[], Tensor]) -> int:
    """Bytes of the storages that the graph of a forward keeps, without parameters and buffers.

    Hooks on saved tensors see more: where there are any, Q-layers share nothing.
    """
    others = {tensor.untyped_storage().data_ptr() for tensor in (*network.parameters(), *network.buffers())}
    result = forward()
    saved: dict[int, int] = {}  # bytes by address: all are alive with the result
    nodes, seen = [result.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes += [other for other, _ in node.next_functions]
        for tensor in _saved_by(node):
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return sum(nbytes for address, nbytes in saved.items() if address not in others)


def _saved_by(node: Node) -> Iterator[Tensor]:
    """What a node of the graph keeps: one of Python names it all, those of torch name each."""
    names = [name for name in dir(node) if name.startswith("_saved_") or name == "saved_tensors"]
    for value in (getattr(node, name) for name in names):
        yield from (one for one in (value if isinstance(value, (tuple, list)) else [value]) if isinstance(one, Tensor))


_NOTICED = 0.01
"""Part of the peak by which it must rise for an operator to be named: a page more says nothing."""


def peak_operator(loss: Callable[[], Tensor], count: Counters) -> str:
    """In which operator of a step the peak is reached, such as ``"backward: aten.convolution_backward, 8x64x56x56"``.
    Every ``.grad`` must be there, from a step before."""
    gc.collect()
    watch = _Watch(count)
    with watch:
        found = loss()
        watch.phase = "backward"
        found.backward()
    return watch.where


class _Watch(TorchDispatchMode):
    """Reads the peak after each operator."""

    def __init__(self, count: Counters) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase, self.where = "forward", ""
        self._count = count
        self._before, self._most = count.start_peak(), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        above = self._count.peak() - self._before
        if above > (1 + _NOTICED) * self._most:
            tensors = [leaf for leaf in tree_leaves((args, result)) if isinstance(leaf, Tensor)]
            shape = max((tuple(tensor.shape) for tensor in tensors), key=math.prod, default=())
            self._most = above
            self.where = f"{self.phase}: {func.name().partition('.')[0]}, {'x'.join(map(str, shape))}"
        return result


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
    return measure_made(cell, Settings.of(settings), counted, build, make_batch)


def measure_made(cell: Found, settings: Settings, counted: Counted, build: Build, make_batch: BatchOf) -> Found:
    """Measures what ``counted`` says in this process, and adds it to the cell.

    Args:
        cell: what it is of, and what is known by now.
        settings: common to all cells.
        counted: which of the counters this process can read.
        build: makes the untouched model.
        make_batch: gives it a batch of so many samples, the same at each call.

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
        make_batch(model, cell, settings, cell.batch if way.recomputed else min(FEW, cell.batch)).loss().backward()
    case = make_batch(model, cell, settings, cell.batch)
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


def make_batch(model: nn.Module, cell: Cell, settings: Settings, batch: int) -> Case:
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


SAME = 1e-5
"""By how much of themselves losses may differ whose gradients are compared. The order of float32 sums makes 1e-6; one
other anchor in a sample of 256, or one other box, makes 1e-3."""


def measure_dense(cell: DenseCell, *, settings: Mapping[str, Any], counted: Counted) -> DenseCell:
    """Measures what ``counted`` says in this process, and adds it to the cell."""
    common = Settings.of(settings)
    found = measure_made(cell, common, counted, build_dense, dense_batch)
    if found.failure or counted == "peak" or cell.way == PLAIN:
        return found
    try:
        return _with_error(found, common)
    except Exception as error:  # the bytes are known all the same
        return replace(found, failure=f"the gradient's error: {reason(error)}")


def build_dense(cell: Cell, settings: Settings) -> nn.Module:
    """The model of a cell with random weights, untouched."""
    torch.manual_seed(settings.seed)
    return DENSE[cell.model].build(cell.size, settings.device).to(settings.device)


def dense_batch(model: nn.Module, cell: Cell, settings: Settings, batch: int) -> Case:
    """A model with generated images and targets, the same at each call."""
    return DENSE[cell.model].case(model, batch, cell.size, torch.device(settings.device), settings.seed)


def _with_error(cell: DenseCell, settings: Settings) -> DenseCell:
    exact_loss, exact = _gradient(cell, settings, PLAIN)
    loss, found = _gradient(cell, settings, cell.way)
    same = abs(loss - exact_loss) <= SAME * abs(exact_loss)
    return replace(cell, losses=[exact_loss, loss], gradient_error=relative_error(found, exact) if same else None)


def _gradient(cell: DenseCell, settings: Settings, way: str) -> tuple[float, list[Tensor]]:
    """A step's loss and gradient, after the steps that warm up: MoCo's queue then holds the same in every way."""
    model = build_dense(cell, settings)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # Q-layers draw other zeros than torch does
    WAYS[way].convert(model, settings.seed)
    for _ in range(WARM_UP):
        batch = cell.batch if WAYS[cell.way].recomputed else min(FEW, cell.batch)
        dense_batch(model, cell, settings, batch).loss().backward()
    case = dense_batch(model, cell, settings, cell.batch)
    model.zero_grad()
    loss = case.loss()
    loss.backward()
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return loss.item(), [torch.zeros_like(one) if one.grad is None else one.grad for one in weights]
