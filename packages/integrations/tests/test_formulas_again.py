"""A forward makes the formulas of the forward before again, in C, and finds out what differs: gradients and reports are
those of forwards that find out everything, bit for bit."""

import sys
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations
from integrations.runtime import replay
from integrations.runtime.formulas.table import Formulas

from .formula_nets import FEATURES, Between, inputs

HALF = FEATURES // 2


def autocast(h):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.silu(h * 0.5) * 2


def overwritten(h):
    y = h * 2
    y.mul_(0.5)
    return F.silu(y)


def changed(h):
    y = F.silu(h)
    with torch.no_grad():
        y[0] = 3.0
    return y


def changed_before(h):
    y = h * 2
    z = y.detach()
    z[0] = 1.0
    return F.silu(y)


def exposed(h):
    y = F.silu(h)
    y.data.mul_(2)
    return y


def exposed_operand(h):
    y = h * 2
    y.data.mul_(0.5)
    return F.silu(y)


def exposed_unseen(h):
    y = h * 2
    y.detach().numpy()[:] *= 0.5  # which is no call that is noted
    return F.silu(y)


def sum_of_exposed(h):
    y = h * 2
    y.detach().numpy()[:] *= 0.5
    return y + 1


def sum_of_changed(h):
    y = h * 2
    with torch.no_grad():
        y.detach()[0] = 1.0
    return y + 1


def stored_by_a_norm(h):
    y = F.silu(h)
    h.stays = F.layer_norm(y, (FEATURES,))
    return y


def stored_and_changed(h):
    with torch.no_grad():
        h.detach()[0] = 1.0
    return F.silu(h)


def with_small(number):
    def function(h):
        small = torch.full((FEATURES,), number)
        y = h * small
        return y

    return function


def saved_too(h):
    """Stores what another formula would make."""
    y = F.silu(h)
    return y * torch.ones_like(y, requires_grad=True) + y.square()


PAIRS = {
    "number": (lambda h: F.silu(h * 0.5), lambda h: F.silu(h * 0.25)),
    "sign of zero": (lambda h: (h * 0.5) / (h.square() + 1) * 0.0, lambda h: (h * 0.5) / (h.square() + 1) * -0.0),
    "gain": (lambda h: torch.tanh(h * 0.5), lambda h: torch.tanh(h * 100.0)),
    "gain of a power": (lambda h: torch.tanh(h**2), lambda h: torch.tanh(h**8)),
    "number of NumPy": (lambda h: F.relu(h) * np.float64(0.5), lambda h: F.relu(h) * np.float64(0.25)),
    "type of a number": (lambda h: F.silu(h * 2), lambda h: F.silu(h * 2.0)),
    "by name": (lambda h: F.gelu(h, approximate="tanh"), lambda h: F.gelu(h, approximate="none")),
    "names": (lambda h: F.gelu(h), lambda h: F.gelu(h, approximate="tanh")),
    "function": (F.silu, F.gelu),
    "operand": (lambda h: (h * 2) * F.silu(h), lambda h: F.silu(h) * F.silu(h)),
    "order": (lambda h: (h + 1) - F.silu(h), lambda h: F.silu(h) - (h + 1)),
    "part": (
        lambda h: F.silu(h[:, :HALF]).repeat(1, 2),
        lambda h: F.silu(h[:, HALF:]).repeat(1, 2),
    ),
    "layout": (lambda h: F.silu(h * 1.0), lambda h: F.silu(h.t().contiguous().t() * 1.0)),
    "shape": (lambda h: F.silu(h * 1.0), lambda h: F.silu((h * 1.0).view(2, -1, FEATURES)).view(h.shape)),
    "dtype": (lambda h: F.silu(h * 1.0), lambda h: F.silu((h * 1.0).double()).float()),
    "autocast": (lambda h: F.silu(h * 0.5) * 2, autocast),
    "in place": (lambda h: F.silu((h * 2) * 0.5), overwritten),
    "changed": (F.silu, changed),
    "changed before": (lambda h: F.silu(h * 2), changed_before),
    "exposed": (F.silu, exposed),
    "exposed operand": (lambda h: F.silu(h * 2), exposed_operand),
    "exposed unseen": (lambda h: F.silu(h * 2), exposed_unseen),
    "stored by a norm": (F.silu, stored_by_a_norm),
    "part of the result": (lambda h: F.silu(h)[:32], lambda h: F.silu(h)[32:]),
    "sum of exposed": (lambda h: h * 2 + 1, sum_of_exposed),  # an addition saves nothing for backward
    "sum of changed": (lambda h: h * 2 + 1, sum_of_changed),
    "stored and changed": (F.silu, stored_and_changed),
    "small": (with_small(2.0), with_small(3.0)),
    "small or large": (with_small(2.0), lambda h: h * h.detach()),
    "joined": (
        lambda h: torch.cat((h[:, :HALF] * 2, F.silu(h[:, HALF:])), 1),
        lambda h: torch.cat((F.silu(h[:, HALF:]), h[:, :HALF] * 2), 1),
    ),
    "joined in a list": (
        lambda h: torch.cat((h[:, :HALF] * 2, F.silu(h[:, HALF:])), 1),
        lambda h: torch.cat([h[:, :HALF] * 2, F.silu(h[:, HALF:])], 1),
    ),
    "more": (lambda h: F.silu(h * 2), lambda h: F.silu(h * 2 + F.relu(h) - 1)),
    "stored too": (F.silu, saved_too),
    "of no use": (F.silu, lambda h: F.silu(h).detach() + h),
}


def run(net, functions, off, monkeypatch, counted=None):
    """The gradients and the report's rows of a step with each function in turn."""
    monkeypatch.setattr(replay, "FORCED_OFF", off)
    x = inputs(net)
    model, found = integrations.compress_model(net, "L1", recompute=True), []
    for function in functions:
        net.function = function
        model.zero_grad()
        told, output = model(x)
        rows = [(one.module, one.operator, one.role, one.codec, one.why, one.stored_bytes, one.original_bytes)
                for one in integrations.compression(model).report().rows]  # fmt: skip
        torch.manual_seed(2)
        torch.autograd.backward([told, output], [torch.ones_like(told), torch.randn_like(output)])
        found.append(([one.grad.clone() for one in net.parameters()], rows))
        if counted is not None:
            counted.append(0)
    integrations.restore_model(model)
    return found


STORED_AS_BEFORE = [("exposed operand", "bbbaaab")]
"""A tensor for which there was no formula is stored as before until the next forward that finds out all."""


@pytest.mark.parametrize(
    ("name", "order"),
    [(name, order) for name in PAIRS for order in ("aaabbba", "bbbaaab") if (name, order) not in STORED_AS_BEFORE],
)
def test_what_differs_is_found_out_anew(name, order, monkeypatch):
    one, other = PAIRS[name]
    functions = [one if letter == "a" else other for letter in order]
    replayed, full = (run(Between(one), functions, off, monkeypatch) for off in (False, True))
    for at, ((gradients, rows), (expected, told)) in enumerate(zip(replayed, full, strict=True)):
        assert rows == told, at
        assert all(torch.equal(*pair) for pair in zip(gradients, expected, strict=True)), at


MADE_AGAIN = ("number", "names", "operand", "part", "layout", "dtype", "autocast", "in place", "small", "joined")


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("name", MADE_AGAIN)
def test_python_makes_no_formula_of_the_forward_before(name, which, monkeypatch):
    function = PAIRS[name][which]
    asked, note = [0], Formulas.note

    def counting(self, call, outputs):
        asked[-1] += 1
        note(self, call, outputs)

    monkeypatch.setattr(Formulas, "note", counting)
    run(Between(function), [function] * 5, False, monkeypatch, asked)
    assert asked[0] > 0
    assert asked[3] == asked[4] == 0


def test_another_tensor_in_the_place_of_a_parameter(monkeypatch):
    """A formula holds a parameter as it is. It holds no other tensor, which would then stay in memory."""

    class Scaled(Between):
        def forward(self, x):
            h = self.before(x)
            told = h * self.scale
            return told, self.after(h * self.function(self.scale))

    functions = [lambda scale: scale] * 3 + [lambda scale: torch.full_like(scale, 2.0)] * 2
    replayed, full = (run(Scaled(None), functions, off, monkeypatch) for off in (False, True))
    assert [rows for _, rows in replayed] == [rows for _, rows in full]
    for (one, _), (other, _) in zip(replayed, full, strict=True):
        assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def test_many_results(monkeypatch):
    """More than the map of formulas has room for before it looks for memory that is gone."""

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.scale = nn.Parameter(torch.ones(8, 64))
            self.after = nn.Linear(64, 8)

        def forward(self, x):
            h = x
            for _ in range(1200):
                h = F.silu(h * self.scale)
            return self.after(h)

    found = []
    for off in (False, True):
        monkeypatch.setattr(replay, "FORCED_OFF", off)
        model = integrations.compress_model(Deep(), "L1", recompute=True)
        torch.manual_seed(1)
        for _ in range(3):
            model.zero_grad()
            model(torch.randn(8, 64)).sum().backward()
        found.append([one.grad for one in model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_threads_run_one_model():
    """Each finds out anew what another has just noted otherwise: templates are replaced while others read them."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.after = nn.Linear(8, 8), nn.Linear(8, 4)
            self.scale = nn.Parameter(torch.ones(16, 8))

        def forward(self, x, number):
            h = self.before(x)
            told = (h * self.scale).sum()
            for _ in range(12):
                h = F.silu(h * number) + h
            return self.after(h).sum() + told

    model, failed = integrations.compress_model(Scaled(), "L1", recompute=True), []

    def run_steps():
        try:
            for step in range(60):
                model(torch.randn(16, 8), 1.0 + step // 3 % 4 / 8).backward()
        except Exception as error:  # of a thread, which the test's does not see
            failed.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=run_steps) for _ in range(3)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failed
