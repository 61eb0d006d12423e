"""What a signal's handler raises while a capture puts back the model's tensors leaves no stand-in in their place."""

import copy
from collections import deque

import pytest
import torch
from torch import nn

import integrations
from integrations.capture import state_snapshot
from integrations.capture.reachable_state import ReachableState
from integrations.capture.stand_ins import StandIns, with_stand_ins

from .faults import interrupted_anywhere
from .nets import normal


class TooLong(Exception):
    """What a handler of the user's raises, once the time is over."""


class Inside(nn.Module):
    """Computes something of the elements inside an interval, as splines do: how many they are follows from the data."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        y = self.layer(x)
        inside = (x >= -1) & (x <= 1)
        result = torch.zeros_like(x)
        result[inside] = y[inside].tanh()
        result[~inside] = x[~inside]
        return result


def gradients(model):
    model(normal(8, 16)).square().sum().backward()
    return [parameter.grad for parameter in model.parameters()]


def test_normflows_test_normal_nsf(monkeypatch):
    """A test's time was over while weights were put back. The exception was taken for the capture's, the weights stayed
    without elements, and the forward behind it raised DynamicOutputShapeException."""
    model = Inside()
    twin, restore, raised = copy.deepcopy(model), state_snapshot.Mapping.restore, []

    def interrupted(self):
        if self._found is model.layer._parameters and not raised:
            raised.append(True)
            raise TooLong
        restore(self)

    monkeypatch.setattr(state_snapshot.Mapping, "restore", interrupted)
    integrations.compress_model(model, error=0)
    found = gradients(model)
    assert raised
    assert all(map(torch.equal, found, gradients(twin)))


class Changing(nn.Module):
    """Has every kind of state that is put back."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.cache, self.listed, self.recent = {"a": torch.ones(1)}, [1, 2], deque([1, 2], 3)
        self.layer.register_forward_hook(lambda *given: None)

    def forward(self, x):
        return self.norm(self.layer(x))

    def change(self):
        """What a forward may do."""
        self.cache |= {"b": self.layer.weight, "a": 1}
        self.listed.insert(0, self.layer.weight)
        self.recent.append(self.layer.weight)
        self.new = self.layer.bias
        self.layer._forward_hooks.clear()
        torch.rand(1)

    def state(self):
        held = [*self.cache.items(), *self.listed, *self.recent, *self.layer._forward_hooks.items()]
        tensors = [one for own in (self.parameters(), self.buffers()) for one in own]
        grads = [parameter.grad for parameter in self.parameters()]
        return [sorted(vars(self)), torch.get_rng_state().tolist(), *map(id, [*tensors, *grads]), *map(str, held)]


@pytest.mark.parametrize("other_threads", [False, True])
def test_an_interrupt_anywhere_while_stand_ins_are_taken_out(other_threads, monkeypatch):
    monkeypatch.setattr("threading.enumerate", lambda: [object()] if other_threads else [])
    model = Changing()
    model(torch.ones(2, 4)).sum().backward()

    def captured(model, fault):
        def work():
            model.change()
            fault.__enter__()

        with_stand_ins(model, StandIns(torch.empty_like), ReachableState(model), work)

    before, tries = model.state(), interrupted_anywhere(captured, lambda: model, quick=40)
    assert [f"{fault.place} {fault.where}" for _, fault in tries if model.state() != before] == []


@pytest.mark.parametrize("kind", [list, deque])
def test_a_sequence_is_whole_after_an_interrupt_anywhere(kind):
    """Beside other threads, what they have added stays, and what was there tells what that is."""

    def changed():
        found = kind([1, 2])
        sequence = state_snapshot.Sequence(found, whole=False)
        found.extend([torch.ones(1), 3])
        return found, sequence

    def restore(changed, fault):
        with fault:
            changed[1].restore()

    for (found, sequence), fault in interrupted_anywhere(restore, changed):
        if fault.where:
            sequence.restore()
        assert list(found) == [1, 2, 3], fault.where
