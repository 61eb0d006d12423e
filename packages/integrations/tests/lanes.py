"""``Offload`` without a GPU: tensors of the CPU are taken for a GPU's, and a lane that takes notes makes the copies."""

import numpy as np
import torch

from actcore.codecs import offload


class Event:
    def synchronize(self):
        pass


class Stream:
    def wait_event(self, event):
        pass


class Lane:
    """Copies at once, and counts what it has given back and nobody has used."""

    def __init__(self):
        self.device = torch.device("cpu")
        self.stream = Stream()
        self.sent, self.fetched = [], []

    def copy_out(self, parts):
        self.sent.append(sum(part.nbytes for part in parts))
        return tuple(map(host_copy, parts)), offload.Crossing(tuple(parts), Event(), self.stream, None)

    def copy_back(self, parts, arrived):
        copies = tuple(part.clone() for part in parts)
        self.fetched.append(sum(part.nbytes for part in parts))
        return offload.Crossing(copies, Event(), self.stream, None)

    def current(self):
        return self.stream


def host_copy(part):
    """A copy in memory that torch has not allocated, so that its profiler does not count it."""
    memory = torch.from_numpy(np.empty(part.numel() * part.element_size(), np.uint8)).view(part.dtype)
    like = torch.empty_like(part, device="meta")
    return memory.as_strided(like.shape, like.stride()).copy_(part)


def take_cpu_for_gpu(monkeypatch):
    """Tensors of the CPU are offloaded as a GPU's would be; the copies are those of the lane that is returned."""
    lane = Lane()
    monkeypatch.setattr(offload, "lane", lambda device: lane)
    monkeypatch.setattr(offload, "_leaves", lambda device: True)
    for order in ("_last", "_leaving", "_ahead"):
        monkeypatch.setattr(offload, order, {})
    monkeypatch.setattr("integrations.tracing.storage.store._can_leave", lambda tensor: True)
    monkeypatch.setattr("integrations.planner.candidates._may_leave", lambda device: True)
    return lane
