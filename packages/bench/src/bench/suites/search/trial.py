"""Some whole training steps of one model in one way, within a limit of memory, in this process."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bench.errors import BenchError, DoesNotApply, reason
from bench.models import sized
from bench.models.subject import Subject
from bench.runner.process_memory import limit_allocation
from bench.suites.memory.systems.cell import WARM_UP
from bench.suites.search.dimensions import dimensions
from bench.suites.search.entries import Trial
from bench.units import size_name
from bench.ways.decoders import ALL_WAYS

TIMED = 3  # steps, of which the median is taken

_TEXTS = (
    "can't allocate memory",  # torch's allocator for the CPU
    "std::bad_alloc",
    "cannot allocate memory",  # the kernel
    "could not create a primitive",  # oneDNN, whose scratch memory is allocated then
    "could not create a memory object",
    "out of memory",  # CUDA
    "_status_alloc_failed",  # cuBLAS and cuDNN
    "unable to find an engine",  # torch, where none of the engines that cuDNN has was given its workspace
)


@dataclass(frozen=True)
class Request:
    """What to try.

    Attributes:
        dimension, way: names in ``dimensions.NAMES`` and ``ways.ALL_WAYS``.
        value: the dimension's.
        device: ``"cpu"`` or ``"cuda"``.
        memory_limit: bytes that training may take: weights, gradients, the optimizer's state and activations.
        threads: of torch's operators.
        seed: of weights and inputs.
    """

    dimension: str
    way: str
    value: int
    device: str
    memory_limit: int
    threads: int
    seed: int


def prepare(way: str, device: str, family: str) -> None:
    """Takes two steps of a tiny network in a way: what libraries load and keep then is not the model's.

    Args:
        way: its name.
        device: of the network.
        family: of the dimension that is searched: decoders have ways of their own.
    """
    with torch.device(device):
        subject = sized.tiny() if family == "llama" else _tiny()
        try:
            for _ in _steps(subject, way, "sgd", 2):
                pass
        except Exception:  # a way that fails says so where it is tried
            return


def take(request: Request) -> Trial:
    """Makes the model and takes the steps, within the limit from here on. What fails is said in the answer.

    On the CPU the limit cannot be lifted: use it in a process that ends thereafter.
    """
    start = time.perf_counter()
    trial = Trial(request.value)
    try:
        trial = _taken(request, trial)
    except DoesNotApply as error:
        trial = replace(trial, does_not_apply=str(error))
    except Exception as error:  # whatever one trial fails with, others are to be made
        trial = replace(trial, failure=reason(error), crashed=not out_of_memory(error))
    if request.device == "cuda" and not trial.crashed:  # what crashed may have left a device that answers nothing
        trial = replace(trial, reserved_bytes=torch.cuda.max_memory_reserved())
    return replace(trial, seconds=time.perf_counter() - start)


def out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one that it came of, says that memory could not be had."""
    while error is not None:
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or says_out_of_memory(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def says_out_of_memory(text: str) -> bool:
    """The same of an error's text."""
    return any(one in text.lower() for one in _TEXTS)


def _taken(request: Request, trial: Trial) -> Trial:
    dimension = dimensions(request.device)[request.dimension]
    device = torch.device(request.device)
    torch.set_num_threads(request.threads)
    if request.threads > 1:
        torch.ones(1 << 20).sum()  # the threads begin before there is a limit: their stacks are not the model's
    gc.collect()
    limit(device, request.memory_limit)
    torch.manual_seed(request.seed)
    with device:
        subject = dimension.make(request.value)
    subject.model.train()
    warm_up = WARM_UP if ALL_WAYS[request.way].adapts else 1
    taken = list(_steps(subject, request.way, dimension.optimizer, warm_up + TIMED))
    return replace(
        trial,
        fits=True,
        outside_bytes=outside_bytes(device),
        finite=all(math.isfinite(loss) for loss, _ in taken),
        step_seconds=[seconds for _, seconds in taken[warm_up:]],
        items=dimension.item_count(request.value),
    )


def limit(device: torch.device, nbytes: int) -> None:
    """From here on this process may allocate so many bytes more, on CUDA: so many in all, of the device's, by torch's
    allocator; its context and what libraries take beside that are not counted.

    Raises:
        BenchError: the device has less than that left beside this process's context.
    """
    if device.type != "cuda":
        limit_allocation(nbytes)
        return
    free, total = torch.cuda.mem_get_info(device)  # makes the context, if there is none
    left = free + torch.cuda.memory_reserved(device)
    if nbytes > left:
        raise BenchError(
            f"--memory-limit must be at most what the GPU has left beside a trial's context, {size_name(left)}, got "
            f"{size_name(nbytes)}; name a smaller one, or end what else uses the GPU"
        )
    torch.cuda.reset_peak_memory_stats(device)
    torch.cuda.set_per_process_memory_fraction(nbytes / total)


def outside_bytes(device: torch.device) -> int | None:
    """What is in use of a GPU beside this process's allocator: its context, libraries' own memory, other processes;
    ``None`` on the CPU."""
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return total - free - torch.cuda.memory_reserved(device)


def _steps(subject: Subject, way: str, optimizer: str, count: int) -> Iterator[tuple[float, float]]:
    """The loss of each step and its seconds: forward, backward and the optimizer's step."""
    forward, surroundings = ALL_WAYS[way].ready(subject)
    parameters = list(subject.model.parameters())
    # Rates so small that random labels do no harm: what a step takes does not depend on them.
    stepper: torch.optim.Optimizer = (
        torch.optim.Adam(parameters, lr=1e-5)
        if optimizer == "adam"
        else torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)
    )
    for _ in range(count):
        start = time.perf_counter()
        stepper.zero_grad()
        with surroundings():
            loss: Tensor = subject.step(forward)
            loss.backward()
        stepper.step()
        found = loss.item()  # waits for a GPU
        del loss
        yield found, time.perf_counter() - start


def _tiny() -> Subject:
    """A network of a few layers, in which each way has something to do."""
    block = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    model = nn.Sequential(block, nn.Flatten(), nn.Linear(8 * 6 * 6, 16), nn.LayerNorm(16), nn.GELU())

    def loss(output: object) -> Tensor:
        assert isinstance(output, Tensor)
        return output.square().mean()

    return Subject(model, (torch.randn(8, 3, 8, 8),), loss, "a tiny network", [block])
