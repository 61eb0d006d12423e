"""``Outermost``: compresses what other people's code trains, without that code's knowledge."""

import contextlib
import importlib
import threading
import weakref
from dataclasses import dataclass

import torch
from torch import nn

import integrations

WAYS = {
    "plain": None,
    "L0": {"level": "L0"},
    "swap": {"level": "swap"},
    # The tensors of tests are small: what is too small to be worth it in a training is stored here, too.
    "L1.1": {"level": "L1.1", "min_bytes": 0},
    "lean": {"level": "lean", "min_bytes": 0},
    "exact": {"error": 0},
}
"""By name, the arguments of ``compress_model``; ``None`` to only count. L0 leaves the model in its wrapper and no more;
swap goes through a session that keeps tensors as they are, on a CPU; exact is a plan with the gradient bit for bit."""

EXACT = ("L0", "swap", "exact")
"""The ways at which loss and gradient are the plain ones, bit for bit."""


@dataclass
class Counts:
    """What happened since the last ``Outermost.take``.

    Attributes:
        forwards: outermost calls in training with gradients enabled.
        original_bytes: that autograd alone would have kept of them, of those that were compressed.
        stored_bytes: that it kept.
    """

    forwards: int = 0
    original_bytes: int = 0
    stored_bytes: int = 0


class Called(nn.Module):
    """A function of a module as a module: its forward is what a library calls in place of ``torch.nn.Module``'s."""

    def __init__(self, module, function):
        super().__init__()
        self.module, self.function = module, function

    def forward(self, *args, **kwargs):
        return self.function(self.module, *args, **kwargs)


class Outermost:
    """Puts itself in the place of ``torch.nn.Module.__call__``, and compresses the outermost module of each training
    forward as a user does: in place, from its first forward on, until ``restore``.

    A model that stays compressed between forwards is copied, pickled and looked into by others' tests as it is. One
    that was called by itself before the model that it is a part of is restored first.

    Args:
        way: one of ``WAYS``.
        calls: further functions that are taken for a forward of the module that is their first argument, as
            ``"gpytorch.module:Module.__call__"``: some libraries' modules are called in a way of their own.
    """

    def __init__(self, way, calls=()):
        self._options = WAYS[way]
        self._plain = nn.Module.__call__
        self._calls = calls
        self._called = {}
        self._here = threading.local()
        self._compressed = weakref.WeakSet()
        self._counts = Counts()

    @contextlib.contextmanager
    def put(self):
        """A block in which modules are called so."""
        plain, outermost = self._plain, self

        def call(module, /, *args, **kwargs):
            if torch.compiler.is_compiling() or not outermost._takes(module):
                return plain(module, *args, **kwargs)
            return outermost._call(module, args, kwargs)

        with contextlib.ExitStack() as undo:
            undo.callback(setattr, nn.Module, "__call__", plain)
            nn.Module.__call__ = call
            for name in self._calls:
                self._put_call(name, undo)
            yield self

    def take(self):
        """The counts since the last call."""
        counts, self._counts = self._counts, Counts()
        return counts

    def restore(self):
        """Restores every model that is compressed."""
        for model in list(self._compressed):
            self._restore(model)
        self._called.clear()

    def _put_call(self, path, undo):
        file, _, qualified = path.partition(":")
        *owners, name = qualified.split(".")
        owner = importlib.import_module(file)
        for part in owners:
            owner = getattr(owner, part)
        plain, outermost = getattr(owner, name), self

        def call(module, /, *args, **kwargs):
            if not isinstance(module, nn.Module) or not outermost._takes(module):
                return plain(module, *args, **kwargs)
            called = outermost._called.setdefault((id(module), path), Called(module, plain))
            return outermost._call(called, args, kwargs)

        undo.callback(setattr, owner, name, plain)
        setattr(owner, name, call)

    def _takes(self, module):
        return (
            not getattr(self._here, "inside", False)
            and torch.is_grad_enabled()
            and getattr(module, "training", False)
            and not isinstance(module, torch.jit.ScriptModule)
            and not torch.jit.is_tracing()
            and torch._C._current_graph_task_id() == -1  # a checkpoint's part runs again, in backward
        )

    def _call(self, module, args, kwargs):
        self._here.inside = True
        try:
            self._counts.forwards += 1
            if self._options is None:
                return self._plain(module, *args, **kwargs)
            self._compress(module)
            result = self._plain(module, *args, **kwargs)
            self._count(module)
            return result
        finally:
            self._here.inside = False

    def _compress(self, model):
        for part in model.modules():
            if part is not model:
                self._restore(part)  # copies, too, which are not known yet
        if not _is_compressed(model):
            integrations.compress_model(model, **self._options)
        self._compressed.add(model)  # a copy of a compressed one, too

    def _restore(self, model):
        self._compressed.discard(model)
        if _is_compressed(model):
            integrations.restore_model(model)

    def _count(self, model):
        if _is_compressed(model):
            report = integrations.compression(model).report()
            self._counts.original_bytes += report.original_bytes
            self._counts.stored_bytes += report.stored_bytes


def _is_compressed(model):
    try:
        integrations.compression(model)
    except ValueError:
        return False
    return True
