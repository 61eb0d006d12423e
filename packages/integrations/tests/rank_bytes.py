"""The bytes that are alive on a rank, for scripts that tests start as ranks."""

import time

import torch
from live_bytes import LiveBytes
from torch import nn
from torch.distributed.tensor import DTensor

SETTLES = 0.005  # seconds after which a thread of gloo has mostly let go of a collective that has ended


class LiveBytesOfRank(LiveBytes):
    """The bytes of a rank: the parts that DTensors have there, and storages at the size to which FSDP2 resizes them.

    A thread of gloo holds what a collective has read and written until a moment after its result is there. On a busy
    machine that moment may last until the rank reads its bytes, so the rank waits for it.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it calls operators on its part, which come here
        self.read()
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if func is torch.ops._c10d_functional.wait_tensor.default:
            time.sleep(SETTLES)
        return out

    @staticmethod
    def is_counted(tensor):
        """Whether a tensor has memory of its own. A DTensor has that of its local tensor, and the fake tensors with
        which DTensors compute shapes have none."""
        return type(tensor) in (torch.Tensor, nn.Parameter)

    def read_settled(self):
        """Return the bytes once they have stopped to fall."""
        lowest, since = self.read(), 0
        while since < 40:
            time.sleep(SETTLES)
            now = self.read()
            lowest, since = min(lowest, now), 0 if now < lowest else since + 1
        return lowest

    def read(self):
        """Update the bytes by the sizes that storages have now, and return them."""
        for key, reference in list(self._known.items()):
            storage = reference()
            if storage is not None:
                self.now += storage.nbytes() - self._sizes[key]
                self._sizes[key] = storage.nbytes()
        self.peak = max(self.peak, self.now)
        return self.now


def count_local(tensors):
    """Return the bytes of this rank's parts of tensors."""
    local = (one.to_local() if isinstance(one, DTensor) else one for one in tensors if one is not None)
    return sum(one.nbytes for one in local)
