"""The peak memory of a step on a rank, for scripts that tests start as ranks of gloo.

Gloo runs each collective on a thread of its own, which leads to two errors of a profiler's peak:

- While a collective runs, gloo may hold a copy of its result. Whether the rank's own peak falls into that time depends
  on the scheduler. A plan does not count the buffers of a communication library, so neither does the peak.
- The thread drops the tensors of a collective a moment after it has announced the end. If the rank has dropped them by
  then, that thread frees them, where the profiler does not see it, and they seem to stay alive.

Here gloo has one thread. It drops a collective before it starts the next one, so the rank waits for a small sum before
it drops a collective itself. (A barrier does not do: it keeps the tensors of the collectives before it.)
"""

from unittest import mock

import torch
import torch.distributed as dist
from nets import profiled_bytes
from torch.distributed import _functional_collectives as collectives

BACKEND = "gloo_with_one_thread"

_wait = collectives.wait_tensor
_nothing = torch.zeros(1)  # made once: a new one for each sum would be freed late, by gloo's thread


def join_ranks(meet, rank, ranks):
    """Join the other ranks in a group of gloo with one thread, as ``measure_peak`` needs it."""
    dist.Backend.register_backend(BACKEND, _make_group, extended_api=True, devices=["cpu"])
    dist.init_process_group(BACKEND, init_method=f"file://{meet}", rank=rank, world_size=ranks)


def measure_peak(call):
    """Return the most bytes that a call has allocated at once, and those that it leaves. All ranks call this at the
    same time, and wait for the same collectives."""
    _flush()
    with mock.patch.object(collectives, "wait_tensor", _wait_until_dropped):
        return profiled_bytes(call, every_thread=False)


def _make_group(options, _):
    one_thread = dist.ProcessGroupGloo._Options()
    one_thread._devices = [dist.ProcessGroupGloo.create_default_device()]
    one_thread._timeout = options.timeout
    one_thread._threads = 1
    return dist.ProcessGroupGloo(options.store, options.group_rank, options.group_size, one_thread)


def _wait_until_dropped(tensor):
    """Wait for a collective when gloo has dropped it, so that this thread is the last one that holds its tensors."""
    _flush()
    return _wait(tensor)


def _flush():
    """Wait until gloo has dropped all collectives that have started."""
    dist.all_reduce(_nothing)
