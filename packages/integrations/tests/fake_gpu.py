"""Run steps of a compressed model on fake CUDA tensors, and count bytes as CUDA's allocator would."""

import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves, tree_map_only

import integrations
from integrations._utils.torch_internals import fake_mode
from integrations.capture import capture as capturing
from integrations.capture import recorder
from integrations.capture.costs.operator_costs import count_scratch
from integrations.capture.dispatch import indices
from integrations.capture.dispatch.fakes import Fakes
from integrations.capture.dispatch.memory import allocated
from integrations.estimate.forecast.attention import FusedAttention
from integrations.estimate.forecast.device import OnDevice
from integrations.estimate.forecast.run import _fake_input, _Indices, _without_elements
from integrations.losses import _differentiated
from integrations.runtime.repeating import segments, tape

from . import fake_engine

CUDA = torch.device("cuda", 0)


def set_up(monkeypatch):
    """Treat tensors on ``meta`` as if they were on a GPU, and answer queries to the driver."""
    monkeypatch.setattr(torch.Tensor, "backward", fake_engine.backward)
    monkeypatch.setattr(capturing, "_get_device", lambda *_: CUDA)
    monkeypatch.setattr(recorder, "indices", SimpleNamespace(call=_on_cpu))
    monkeypatch.setattr(tape, "get_generator", lambda *_: torch.default_generator)
    for module in (_differentiated, segments):  # the engine in Python has no graph task
        monkeypatch.setattr(module, "get_current_graph_task_keep_graph", lambda: False)
    monkeypatch.setattr(segments, "current_graph_task_id", lambda: 1)
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_, **__: True)


def _on_cpu(function, traits, args, kwargs):
    return indices.call(OnDevice(function, fake_mode(), CUDA), traits, args, kwargs)


@contextmanager
def amp():
    """Enable mixed precision and flash attention."""
    with torch.autocast("cuda", torch.bfloat16), FusedAttention():
        yield


class CudnnAttention(FusedAttention):
    """Causal attention by cuDNN's kernel, which torch prefers on Hopper."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        return torch.ops.aten._scaled_dot_product_cudnn_attention(*args[:3], None, True, 0.0, True)[0]


class Counting(Fakes):
    """Count the memory of fake tensors and kernels while ``on``, in blocks of the allocator."""

    def __init__(self):
        super().__init__()
        self.on, self.now, self.peak, self._depth = False, 0, 0, 0
        self._known = {}

    def dispatch(self, func, types, args=(), kwargs=None):
        self._depth += 1
        try:
            out = super().dispatch(func, types, args, kwargs or {})
        finally:
            self._depth -= 1
        if self._depth == 0 and self.on:
            self._count(func, args, out)
        return out

    def _count(self, func, args, out):
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.is_cuda:
                storage = tensor.untyped_storage()
                key, nbytes = storage._cdata, allocated(storage.nbytes(), tensor.device)
                if key not in self._known:
                    self.now += nbytes
                    self._known[key] = weakref.ref(storage, lambda _, key=key, nbytes=nbytes: self._freed(key, nbytes))
        results = tuple(out) if isinstance(out, (list, tuple)) else (out,)
        self.peak = max(self.peak, self.now + count_scratch(func, args, results))

    def _freed(self, key, nbytes):
        del self._known[key]
        self.now -= nbytes

    def given(self, tensors):
        """Register memory that existed before."""
        self._known.update((tensor.untyped_storage()._cdata, None) for tensor in tensors)


def step_bytes(model, plan, args, kwargs, loss, around):
    """Return the peak bytes of a step beyond those that remain, for a model that follows a plan."""
    mode = Counting()
    fake = integrations.apply(_without_elements(model, mode, CUDA).train(), plan)
    args, kwargs = tree_map_only(torch.Tensor, lambda tensor: _fake_input(tensor, mode, CUDA), (args, kwargs))
    with mode, _Indices(mode, CUDA):
        mode.given(
            [*fake.parameters(), *fake.buffers(), *(x for x in tree_leaves((args, kwargs)) if torch.is_tensor(x))]
        )
        for _ in range(2):  # the second step uses the specs of the first one
            for parameter in fake.parameters():
                parameter.grad = None
            mode.now, mode.peak, mode.on = 0, 0, True
            with around():
                total = loss(fake(*args, **kwargs))
            total.backward()
            del total
            mode.on = False
    return mode.peak - mode.now
