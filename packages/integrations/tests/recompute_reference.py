"""The bytes of a checkpointed step, by a slow simulation and by counting; and a plain step beside one."""

import copy
import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from integrations.checkpoint.schedule import Schedule
from integrations.checkpoint.tape import run


def simulated_peak(graph, kept):
    """The most bytes that are alive in any event of a step that keeps these values."""
    schedule = Schedule.of(graph, kept)
    first = len(graph.ops)
    recorded = {number: op.segment for number, op in enumerate(schedule.ops) if op.segment >= 0}
    saved = {value for value, entry in enumerate(graph.values) if entry.saved >= 0}
    ends = {}  # of values that are kept
    made = [[] for _ in graph.other]  # of each event: value, nbytes, last event
    inner = [0 for _ in graph.other]  # the most that a repetition in it takes, beside what is alive before
    replayed = set()
    for step, entry in enumerate(graph.steps):
        event = first + step
        for read in entry.reads:
            segment = schedule.ops[graph.values[read].producer].segment
            if read not in schedule.recomputed or segment in replayed:
                continue
            replayed.add(segment)
            ops = [number for number in recorded if recorded[number] == segment]
            wanted = {
                value
                for number in ops
                for value in graph.ops[number].makes
                if value in schedule.recomputed and value in saved and graph.values[value].saved >= event
            }
            needed, last, chosen = set(wanted), dict.fromkeys(wanted, first), []
            for number in reversed(ops):
                if needed & set(graph.ops[number].makes):
                    chosen.append(number)
                    for value in graph.ops[number].reads:
                        if value in schedule.recomputed:
                            needed.add(value)
                            last.setdefault(value, number)
                        else:
                            ends[value] = max(ends.get(value, 0), event)
            # What is kept for the repetition alone goes when it has been read there for the last time.
            leaves = {}
            for number in chosen:
                for value in graph.ops[number].reads:
                    entry = graph.values[value]
                    if value not in schedule.recomputed and max(entry.until, entry.saved) < event:
                        leaves.setdefault(value, number)
            gone, live = 0, {}
            for number in reversed(chosen):
                for value in graph.ops[number].makes:
                    live[value] = graph.values[value].nbytes
                    live.pop(graph.values[value].reuses, None)
                inner[event] = max(inner[event], sum(live.values()) - gone + graph.ops[number].scratch)
                gone += sum(graph.values[value].nbytes for value, after in leaves.items() if after == number)
                live = {value: nbytes for value, nbytes in live.items() if last.get(value, -1) > number}
            for value, nbytes in live.items():
                made[event].append((value, nbytes, graph.values[value].saved))
    taken_over = {entry.reuses: number for number, entry in enumerate(graph.values) if entry.reuses >= 0}
    bytes_ = [op.scratch for op in graph.ops] + [0] * len(graph.steps)
    for value, entry in enumerate(graph.values):
        end = entry.until
        if value not in schedule.recomputed:
            end = max(end, entry.saved, ends.get(value, -1))
        if value in taken_over:
            end = graph.values[taken_over[value]].producer - 1
        for event in range(entry.producer, end + 1):
            bytes_[event] += entry.nbytes
    for event, values in enumerate(made):
        for _, nbytes, end in values:
            for later in range(event + 1, end + 1):
                bytes_[later] += nbytes
    return max(b + i + o for b, i, o in zip(bytes_, inner, graph.other, strict=True))


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all storages that are made while it is active, as long as they live."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self._known = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {tensor.untyped_storage()._cdata for tensor in tree_leaves((args, kwargs)) if torch.is_tensor(tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if not torch.is_tensor(tensor):
                continue
            storage = tensor.untyped_storage()
            key, nbytes = storage._cdata, storage.nbytes()
            if key not in given and key not in self._known:
                self.now += nbytes
                self._known[key] = weakref.ref(storage, lambda _, key=key, nbytes=nbytes: self._freed(key, nbytes))
        self.peak = max(self.peak, self.now)
        return out

    def _freed(self, key, nbytes):
        self.now -= nbytes
        del self._known[key]


class Ones(torch.autograd.Function):
    """A loss that costs nothing, with the gradient that a capture takes."""

    @staticmethod
    def forward(ctx, *outputs):
        ctx.like = [(output.shape, output.dtype) for output in outputs]
        return torch.zeros(())

    @staticmethod
    def backward(ctx, gradient):
        return tuple(torch.ones(shape, dtype=dtype) for shape, dtype in ctx.like)


def counted_peak(model, graph, kept, *args):
    """The most bytes that are alive during a step, counted."""
    with LiveBytes() as live:
        outputs = run(model, graph, kept)(*args)
        Ones.apply(*[tensor for tensor in tree_leaves(outputs) if tensor.requires_grad]).backward()
    return live.peak


def outcome(forward, model, args, kwargs, steps=1, seed=7):
    """What a training step leaves: outputs, gradients, buffers, and the generator's state."""
    torch.manual_seed(seed)
    model.zero_grad()
    outputs = []
    for _ in range(steps):
        outputs.append(forward(*args, **kwargs))
        loss = sum(tensor.square().sum() for tensor in tree_leaves(outputs[-1]))
        loss.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [*tree_leaves(outputs), *gradients, *model.buffers(), torch.get_rng_state()]


def assert_as_plain(model, graph, kept, args, kwargs, steps=1):
    """A checkpointed step leaves, bit for bit, what a plain one does."""
    twin = copy.deepcopy(model)
    ours = outcome(run(model, graph, kept), model, args, kwargs, steps)
    plain = outcome(twin, twin, args, kwargs, steps)
    assert len(ours) == len(plain)
    for one, other in zip(ours, plain, strict=True):
        assert torch.equal(one, other)


def random_kept(graph, share, seed=0):
    """About this share of the values."""
    drawn = torch.rand(len(graph.values), generator=torch.Generator().manual_seed(seed))
    return [value for value in range(len(graph.values)) if drawn[value] < share]
