"""Interrupts at each place where a trial run of a closure is undone, and where threads wait."""

import threading

import pytest
import torch
from torch import nn

from integrations._utils.locking import OwnLock, Users
from integrations.planner.sensitivity.trial_run import trial

from .faults import interrupted_anywhere

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


def test_an_interrupt_while_a_trial_run_is_undone():
    """Gradients, buffers and generators are as they were. Of captures, ``test_capture_interrupted.py`` asks it."""

    def made():
        torch.manual_seed(0)
        model = Remembering()
        return model, model.state(), torch.get_rng_state()

    def tried(made, fault):
        with trial(made[0]):
            made[0].change()
            fault.__enter__()

    told = []
    for (model, before, drawn), fault in interrupted_anywhere(tried, made, quick=150):
        if model.state() != before or not torch.equal(torch.get_rng_state(), drawn):
            told.append(f"{fault.place} {fault.where}: {model.state()}")
    assert told == []


def test_an_interrupt_leaves_no_lock_to_other_threads():
    def use(lock, fault):
        with fault, lock.held:
            lock.__reduce__()

    def try_it(lock, free):
        free.append(lock.held.acquire(blocking=False))

    for lock, fault in interrupted_anywhere(use, OwnLock):
        thread = threading.Thread(target=try_it, args=(lock, free := []))
        thread.start()
        thread.join()
        assert free == [True], fault.where


def test_an_interrupt_leaves_nobody_waiting():
    """Neither for a forward that is over, nor for one that was to be alone."""

    def use(users, fault):
        with fault:
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

    for users, fault in interrupted_anywhere(use, Users):
        thread = threading.Thread(target=alone, args=(users, done := []), daemon=True)
        thread.start()
        thread.join(10)
        assert done, fault.where
