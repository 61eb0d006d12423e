"""The bytes that are alive while something runs, by the operators that make them."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all storages that are made while it is active, as long as they live."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self._known = {}
        self._sizes = {}
        self._sum = None

    def __exit__(self, *error):
        self._settle()
        super().__exit__(*error)

    def _settle(self):
        """The engine sums up gradients in place, but in the sight of a mode: there the first part goes with the sum.
        It never adds to a view in place, since the base refers to the same memory."""
        if self._sum is not None:
            (part, nbytes), self._sum = self._sum, None
            if part() is not None:
                self.peak = max(self.peak, nbytes)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self._settle()
        given = {tensor.untyped_storage()._cdata for tensor in tree_leaves((args, kwargs)) if torch.is_tensor(tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if not self.is_counted(tensor):
                continue
            storage = tensor.untyped_storage()
            key, nbytes = storage._cdata, storage.nbytes()
            if key not in given and key not in self._known:
                self.now += nbytes
                self._known[key] = weakref.ref(storage, lambda _, key=key: self._freed(key))
                self._sizes[key] = nbytes
        sums = func is torch.ops.aten.add.Tensor and torch._C._current_autograd_node() is not None
        if sums and args[0]._base is None:
            self._sum = weakref.ref(args[0].untyped_storage()), self.now
            self.peak = max(self.peak, self.now - out.untyped_storage().nbytes())
        else:
            self.peak = max(self.peak, self.now)
        return out

    @staticmethod
    def is_counted(tensor):
        """Whether a result has memory."""
        return torch.is_tensor(tensor)

    def _freed(self, key):
        self.now -= self._sizes.pop(key)
        del self._known[key]
