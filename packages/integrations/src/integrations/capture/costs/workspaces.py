"""``measured``: what the operators of a training step take on this machine. Each distinct call is run a few times.

Kernels take memory of their own while they run: copies of their arguments in another layout, partial sums. oneDNN's
convolutions copy images and weights, which can take as much as the rest of a checkpointed step. Only running a call
tells how much. The training is not touched: calls run on tensors that look like its own, for a CPU in another process.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from integrations._utils.torch_internals import disable_current_modes
from integrations._utils.warn import warn
from integrations.capture.costs import timed_call
from integrations.capture.costs.calls import CostedCall
from integrations.capture.costs.operator_costs import Cost, Costs, modelled
from integrations.capture.costs.timed_call import ANSWER, MMAP_THRESHOLD, Repeated, setting
from integrations.capture.dispatch.memory import allocated

# Keeps the script's folder off sys.path.
_SCRIPT = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"


def measured(calls: Sequence[CostedCall]) -> list[Cost]:
    """Seconds and scratch of calls, measured on CPU and CUDA.

    Calls that cannot be run so are modelled: operators of other libraries than torch's, sparse tensors and subclasses,
    other devices. Scratch on a CPU is what becomes resident (``VmHWM``), which Linux tells; elsewhere it counts as
    none. On CUDA it is what the caching allocator hands out; its peak counter is reset.

    Measuring takes about the time of a few steps, for a CPU also that of importing torch. Times vary from run to run:
    ranks that are to follow one plan get it from one of them.

    Args:
        calls: the distinct calls of a training step.
    """
    costs = modelled(calls)
    for device, measure in (("cpu", _on_cpu), ("cuda", _on_cuda)):
        places = [place for place, call in enumerate(calls) if call.device == device]
        if places:
            for place, cost in measure([calls[place].packed() for place in places]).items():
                costs[places[place]] = cost
    return costs


def with_workspaces_of_cudnn(costs: Costs) -> Costs:
    """Return costs whose scratch includes the workspaces of CUDA's convolutions. cuDNN chooses an algorithm for each
    shape, and the workspace of some is larger than all tensors of the step. So each distinct call runs three times, the
    first time to load its kernels. Costs of other calls, and of all calls where there is no GPU, are left alone. No
    counter is reset, but the allocator's peak may rise to what the largest convolution takes.

    Args:
        costs: a function that returns the cost of each call.
    """

    def found(calls: Sequence[CostedCall]) -> list[Cost]:
        return [_with_workspace(call, cost) for call, cost in zip(calls, costs(calls), strict=True)]

    return found


_CONVOLUTION, _BACKWARD = "aten.convolution.default", "aten.convolution_backward.default"
_ALLOCATED = "allocated_bytes.all.allocated"  # the sum of all blocks that were ever handed out
_MASK = 10  # the place of the argument that says which gradients are asked for


def _with_workspace(call: CostedCall, cost: Cost) -> Cost:
    if call.device != "cuda" or call.name not in (_CONVOLUTION, _BACKWARD) or not torch.cuda.is_available():
        return cost
    try:
        return replace(cost, scratch=max(cost.scratch, _workspace_bytes(call.name, call.packed(), _chosen_by())))
    except Exception:  # the call cannot be run with tensors made up for it, or there is no room
        return cost


def _chosen_by() -> tuple[Any, ...]:
    """Return the settings of this process by which cuDNN chooses an algorithm."""
    cudnn = torch.backends.cudnn
    deterministic = cudnn.deterministic or torch.are_deterministic_algorithms_enabled()
    try:
        precision: Any = cudnn.allow_tf32
    except RuntimeError:  # convolutions and recurrent layers differ, which torch has newer settings for
        precision = getattr(getattr(cudnn, "conv", None), "fp32_precision", None)
    return cudnn.enabled, cudnn.benchmark, cudnn.benchmark_limit, deterministic, precision


@lru_cache(maxsize=4096)
def _workspace_bytes(name: str, packed: bytes, chosen_by: tuple[Any, ...]) -> int:
    """Return the most bytes that a convolution, or one of its gradients, allocates in addition to its results.
    ``chosen_by`` tells apart the settings by which cuDNN chooses an algorithm."""
    with disable_current_modes(), torch.inference_mode(False):
        call = Repeated(packed)
        with torch.cuda.device(call.device):
            return max(map(_passing_bytes, _gradients(call) if name == _BACKWARD else [call]), default=0)


def _gradients(call: Repeated) -> Iterator[Repeated]:
    """Yield a call for each gradient that a convolution's backward computes with cuDNN: one after the other, so that
    their workspaces are not there at once. That of a bias is a sum."""
    mask = call.argument(_MASK)
    for place in range(2):
        if mask[place]:
            yield call.with_argument(_MASK, [place == number for number in range(len(mask))])


def _passing_bytes(call: Repeated) -> int:
    """Return the bytes that a call allocates in addition to its results. They are read from the allocator's running sum
    of all allocations. Nobody resets that sum, but another thread may add to it, so the smaller of two readings counts.
    """
    call()  # loads kernels, and lets cuDNN choose
    return min(_allocated_beside(call) for _ in range(2))


def _allocated_beside(call: Repeated) -> int:
    before = torch.cuda.memory_stats()[_ALLOCATED]
    out = call()
    taken = torch.cuda.memory_stats()[_ALLOCATED] - before
    return max(0, int(taken) - sum(allocated(nbytes, call.device) for nbytes in call.new_storages(out)))


def _on_cpu(calls: Sequence[bytes]) -> Mapping[int, Cost]:
    """The costs by place, as a process of its own measures them."""
    try:
        child = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _SCRIPT, timed_call.__file__],
            input=pickle.dumps((setting(), calls)),
            env={
                **os.environ,
                "MALLOC_MMAP_THRESHOLD_": str(MMAP_THRESHOLD),
                "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
            },
            capture_output=True,
        )
    except OSError as error:
        warn(f"the operators' workspaces are counted as 0 bytes: the process that measures them did not start: {error}")
        return {}
    found: dict[int, Cost] = {}
    for line in child.stdout.decode(errors="replace").splitlines():
        if line.startswith(ANSWER):
            place, seconds, scratch = line.removeprefix(ANSWER).split()
            found[int(place)] = Cost(float(seconds), int(scratch))
    if child.returncode:
        last = (child.stderr.decode(errors="replace").strip().splitlines() or ["it wrote nothing"])[-1]
        warn(
            "the workspaces of some operators are counted as 0 bytes: the process that measures them ended with "
            f"code {child.returncode} after {len(found)} of {len(calls)}: {last:.200}"
        )
    return found


def _on_cuda(calls: Sequence[bytes]) -> Mapping[int, Cost]:
    """The costs by place, as the caching allocator and the clock tell them."""
    found: dict[int, Cost] = {}
    with torch.random.fork_rng(range(torch.cuda.device_count()), device_type="cuda"):
        for place, packed in enumerate(calls):
            try:
                call = Repeated(packed)
                with torch.cuda.device(call.device):  # selects the counters and the clock
                    found[place] = _cost_on_cuda(call)
            except Exception:  # the call cannot be run with tensors made up for it: its cost is modelled
                continue
    return found


def _cost_on_cuda(call: Repeated) -> Cost:
    call()  # pays for handles and caches, and for the workspace that cuBLAS keeps
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    out = call()
    # This leaves out what was allocated before, and the results.
    scratch = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    del out
    return Cost(call.seconds(_cuda_clock), scratch)


def _cuda_clock() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()
