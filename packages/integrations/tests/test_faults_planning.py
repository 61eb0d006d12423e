"""Interrupts at each place where a capture, or a trial run of a closure, is undone, and where threads wait."""

import contextlib
import threading

import pytest
import torch
from torch import nn

from integrations._adaptive.guard import trial
from integrations._common.locking import OwnLock, Users
from integrations._step.capturing.stand_ins import StandIns, stood_in

from .faults import AtCall, places

# An interrupt in a destructor is Python's to swallow.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Remembering(nn.Module):
    """A forward of it changes what it holds."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.seen, self.ordered, self.known = ["before"], {"first": 1, "second": 2}, {"before"}
        self.register_forward_hook(lambda *given: None)
        for parameter in self.parameters():
            parameter.grad = torch.ones_like(parameter)

    def change(self, everything):
        torch.rand(1)
        self.layers[1].num_batches_tracked.add_(1)
        if not everything:
            return
        self.seen.append(torch.ones(1))
        self.ordered["first"] = self.ordered.pop("first")
        self.known.add("after")
        self.layers[1].running_mean = torch.ones(4)
        self._forward_hooks.clear()

    def state(self):
        tensors = [(id(one), one.grad is not None, one.sum().item()) for one in (*self.parameters(), *self.buffers())]
        return tensors, self.seen[:], list(self.ordered), sorted(self.known), len(self._forward_hooks)


def captured(model):
    return stood_in(model, StandIns(lambda tensor: tensor.detach().clone()), ())


def tried(model, block, faults):
    """A trial run in a block, with faults while it is undone."""
    try:
        with block(model):
            model.change(block is captured)
            faults.__enter__()
    finally:
        faults.__exit__()


@pytest.mark.parametrize("block", [captured, trial])
def test_an_interrupt_while_a_trial_run_is_undone(block):
    """Stand-ins do not stay, nor half of a list or of a dictionary, and gradients and buffers are there."""
    tried(Remembering(), block, counts := AtCall())
    assert counts.seen
    told = []
    for place in places(counts.seen, 150):
        torch.manual_seed(0)
        model = Remembering()
        before, drawn = model.state(), torch.get_rng_state()
        injected = AtCall(place, KeyboardInterrupt())
        with contextlib.suppress(KeyboardInterrupt):
            tried(model, block, injected)
        if model.state() != before or not torch.equal(torch.get_rng_state(), drawn):
            told.append(f"{place} {injected.where}: {model.state()}")
    assert told == []


def test_an_interrupt_leaves_no_lock_to_other_threads():
    def use(lock):
        with lock.held:
            lock.__reduce__()

    def try_it(lock, free):
        free.append(lock.held.acquire(blocking=False))

    with AtCall() as counts:
        use(OwnLock())
    for place in range(1, counts.seen + 1):
        lock, free = OwnLock(), []
        with contextlib.suppress(KeyboardInterrupt), AtCall(place, KeyboardInterrupt()):
            use(lock)
        thread = threading.Thread(target=try_it, args=(lock, free))
        thread.start()
        thread.join()
        assert free == [True]


def test_an_interrupt_leaves_nobody_waiting():
    """Neither for a forward that is over, nor for one that was to be alone."""

    def use(users):
        here = users.enter()
        try:
            with users.alone():
                pass
        finally:
            here.end()

    def alone(users, done):
        with users.alone():
            users.enter().end()
        done.append(True)

    with AtCall() as counts:
        use(Users())
    for place in range(1, counts.seen + 1):
        users, done = Users(), []
        injected = AtCall(place, KeyboardInterrupt())
        with contextlib.suppress(KeyboardInterrupt), injected:
            use(users)
        injected.error.__traceback__ = None
        thread = threading.Thread(target=alone, args=(users, done), daemon=True)
        thread.start()
        thread.join(10)
        assert done, injected.where
