"""Interrupts at each place where a trial run of a closure is undone, and where threads wait."""

import contextlib
import threading

import pytest
import torch
from torch import nn

from integrations._adaptive.guard import trial
from integrations._common.locking import OwnLock, Users

from .faults import AtCall, places

# An interrupt in a destructor is Python's to swallow.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Remembering(nn.Module):
    """A forward of it changes what it holds."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        for parameter in self.parameters():
            parameter.grad = torch.ones_like(parameter)

    def change(self):
        torch.rand(1)
        self.layers[1].num_batches_tracked.add_(1)

    def state(self):
        return [(id(one), one.grad is not None, one.sum().item()) for one in (*self.parameters(), *self.buffers())]


def tried(model, faults):
    """A trial run, with faults while it is undone."""
    try:
        with trial(model):
            model.change()
            faults.__enter__()
    finally:
        faults.__exit__()


def test_an_interrupt_while_a_trial_run_is_undone():
    """Gradients, buffers and generators are as they were. Of captures, ``test_capture_interrupted.py`` asks it."""
    tried(Remembering(), counts := AtCall())
    assert counts.seen
    told = []
    for place in places(counts.seen, 150):
        torch.manual_seed(0)
        model = Remembering()
        before, drawn = model.state(), torch.get_rng_state()
        injected = AtCall(place, KeyboardInterrupt())
        with contextlib.suppress(KeyboardInterrupt):
            tried(model, injected)
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
