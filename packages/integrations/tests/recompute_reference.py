"""The bytes of a checkpointed step, by a slow simulation and by counting; and a plain step beside one."""

import copy

import torch
from torch.utils._pytree import tree_leaves

from integrations.capture.graphs.schedule import Schedule

from .live_bytes import LiveBytes
from .recompute_run import run


class Repetitions:
    """The segments of a step in the order in which they are repeated, found one read of backward after the other.

    Attributes:
        found: of each, the event, the operators, and the values that stay, with the last event at which autograd would
            hold them.
        reads: of each value that is there before, and read in one, the last such repetition and its operator there.
    """

    def __init__(self, graph, schedule):
        self.found, self.reads = [], {}
        self._graph, self._schedule, self._begun = graph, schedule, set()
        self._read_inside = {
            value
            for op, planned in zip(graph.ops, schedule.ops, strict=True)
            if planned.inner >= 0
            for value in op.reads
            if value in schedule.recomputed and value not in schedule.inner
        }
        for step, entry in enumerate(graph.steps):
            for value in entry.reads:
                if value in schedule.recomputed:
                    self._begin("inner" if value in schedule.inner else "segment", value, len(graph.ops) + step)

    def _begin(self, kind, value, event):
        graph, schedule = self._graph, self._schedule
        segment = getattr(schedule.ops[graph.values[value].producer], kind)
        if (kind, segment) in self._begun:
            return
        self._begun.add((kind, segment))
        own = schedule.inner if kind == "inner" else schedule.recomputed
        ops = [number for number, op in enumerate(schedule.ops) if getattr(op, kind) == segment]
        stays = {
            value
            for number in ops
            for value in graph.ops[number].makes
            if value in own and (kind == "inner" or value not in schedule.inner)
            if graph.values[value].saved >= event or (kind == "segment" and value in self._read_inside)
        }
        needed, chosen = set(stays), []
        for number in reversed(ops):
            if needed & set(graph.ops[number].makes):
                chosen.insert(0, number)
                needed |= own & set(graph.ops[number].reads)
        for number in chosen:
            for value in graph.ops[number].reads:
                if value in schedule.recomputed and value not in own:
                    self._begin("segment", value, event)
        for number in chosen:
            for value in graph.ops[number].reads:
                if value not in own:
                    self.reads[value] = (len(self.found), number)
        self.found.append((event, chosen, stays))


def simulated_peak(graph, kept, held=None):
    """The most bytes that are alive in any event of a step that keeps these values, and holds those."""
    schedule = Schedule.of(graph, kept, held)
    repetitions = Repetitions(graph, schedule)
    taken_over = {entry.reuses: number for number, entry in enumerate(graph.values) if entry.reuses >= 0}
    bytes_ = [op.scratch for op in graph.ops] + [0] * len(graph.steps)

    def live(value, first, end):
        for event in range(first, end + 1):
            bytes_[event] += graph.values[value].nbytes

    def last_read(value):
        return repetitions.found[repetitions.reads[value][0]][0] if value in repetitions.reads else -1

    for value, entry in enumerate(graph.values):
        end = entry.until
        if value not in schedule.recomputed:
            end = max(end, entry.saved, last_read(value))
        if value in taken_over:
            end = graph.values[taken_over[value]].producer - 1
        live(value, entry.producer, end)
    inside = [0] * len(graph.other)  # the most that repetitions in an event take, beside what is alive before
    left = [0] * len(graph.other)  # after those that have been
    for number, (event, ops, stays) in enumerate(repetitions.found):
        made = {}
        own = {value for op in ops for value in graph.ops[op].makes}
        for place, op in enumerate(ops):
            for value in graph.ops[op].makes:
                made[value] = graph.values[value].nbytes
                made.pop(graph.values[value].reuses, None)
            inside[event] = max(inside[event], left[event] + sum(made.values()) + graph.ops[op].scratch)
            later = {value for other in ops[place + 1 :] for value in graph.ops[other].reads} & own
            passing = later - {value for value in later if value not in schedule.recomputed}
            made = {value: nbytes for value, nbytes in made.items() if value in stays or value in passing}
            # What is there for repetitions alone goes when it has been read for the last time.
            for value in graph.ops[op].reads:
                entry = graph.values[value]
                is_held_on = entry.saved if value in schedule.recomputed else max(entry.until, entry.saved)
                if repetitions.reads.get(value) == (number, op) and is_held_on < event:
                    left[event] -= entry.nbytes
        left[event] += sum(made.values())
        for value in made:
            live(value, event + 1, max(graph.values[value].saved, last_read(value)))
    return max(b + i + o for b, i, o in zip(bytes_, inside, graph.other, strict=True))


class Ones(torch.autograd.Function):
    """A loss that costs nothing, with the gradient that a capture takes."""

    @staticmethod
    def forward(ctx, *outputs):
        ctx.like = [(output.shape, output.dtype) for output in outputs]
        return torch.zeros(())

    @staticmethod
    def backward(ctx, gradient):
        return tuple(torch.ones(shape, dtype=dtype) for shape, dtype in ctx.like)


def counted_peak(model, graph, kept, *args, held=None):
    """The most bytes that are alive during a step, counted."""
    with LiveBytes() as live:
        outputs = run(model, graph, kept, held=held)(*args)
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


def assert_as_plain(model, graph, kept, args, kwargs, steps=1, held=None):
    """A checkpointed step leaves, bit for bit, what a plain one does."""
    twin = copy.deepcopy(model)
    ours = outcome(run(model, graph, kept, held=held), model, args, kwargs, steps)
    plain = outcome(twin, twin, args, kwargs, steps)
    assert len(ours) == len(plain)
    for one, other in zip(ours, plain, strict=True):
        assert torch.equal(one, other)


def random_kept(graph, share, seed=0):
    """About this share of the values."""
    drawn = torch.rand(len(graph.values), generator=torch.Generator().manual_seed(seed))
    return [value for value in range(len(graph.values)) if drawn[value] < share]
