"""Hooks and modes end with the forward, whatever ends it, and module paths stay right.

``conftest.py`` checks after every test of this package that nothing is left active; here the ends are the subject.
"""

import contextlib
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations

from .nets import assert_nothing_active, mlp, normal, rows

X = normal(48, 64)
W = normal(64, 64, seed=1) / 8


class Stops(nn.Module):
    def __init__(self, error=None):
        super().__init__()
        self.error = error

    def forward(self, x):
        if self.error is not None:
            raise self.error
        return x


@pytest.mark.parametrize(
    "error", [RuntimeError("stop"), KeyboardInterrupt(), SystemExit(), GeneratorExit(), StopIteration()]
)
@pytest.mark.parametrize("entrance", ["compress_model", "compress"])
def test_whatever_ends_the_forward(error, entrance):
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), Stops(error), nn.Linear(64, 64))
    if entrance == "compress_model":
        integrations.compress_model(model)
        with pytest.raises(type(error)):
            model(X)
    else:
        with pytest.raises(type(error)), integrations.compress(model):
            model(X)
    assert_nothing_active()

    model[2].error = None
    model(X).sum().backward()
    if entrance == "compress_model":
        assert [row.module for row in rows(model)] == ["1", "3"]


def test_an_error_inside_an_operator():
    model = integrations.compress_model(nn.Sequential(nn.Linear(64, 64), nn.Linear(3, 3)))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        model(X)
    assert_nothing_active()


def test_an_error_in_the_loss_inside_a_block():
    model = mlp()
    with pytest.raises(TypeError, match="target"), integrations.compress(model) as handle:
        F.nll_loss(model(X), "labels")
    assert_nothing_active()
    assert len(handle.report().rows) > 0
    assert all(not module._forward_hooks for module in model.modules())


def test_an_error_in_a_users_hook():
    model = integrations.compress_model(mlp())
    hook = model[2].register_forward_pre_hook(lambda module, args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(X)
    assert_nothing_active()
    hook.remove()
    model(X).sum().backward()
    assert [row.module for row in rows(model)] == ["1", "2", "3", "4", "5"]


# ---- module paths ----


class Parent(nn.Module):
    """Calls a child that fails, goes on, and works itself."""

    def __init__(self):
        super().__init__()
        self.before = nn.Linear(64, 64)
        self.fails = nn.Sequential(nn.Linear(64, 64), Stops(ValueError("no")))
        self.after = nn.Linear(64, 64)
        self.weight = nn.Parameter(W.clone())

    def forward(self, x):
        h = self.before(x)
        with contextlib.suppress(ValueError):
            self.fails(h)
        return self.after(F.linear(h.tanh(), self.weight))


def test_a_caught_exception_leaves_the_path():
    model = integrations.compress_model(nn.Sequential(Parent(), nn.Linear(64, 64)))
    model(X).sum().backward()
    assert [(row.module, row.operator) for row in rows(model)] == [
        ("0.fails.0", "linear"),
        ("0", "tanh"),
        ("0", "linear"),
        ("0.after", "linear"),
        ("1", "linear"),
    ]


def test_a_pre_hooks_error_that_is_caught_leaves_the_path():
    """The module was never entered for the tracker: leaving it must not leave its parents, too."""

    class Careful(nn.Module):
        def __init__(self):
            super().__init__()
            self.child = nn.Linear(64, 64)
            self.child.register_forward_pre_hook(lambda module, args: 1 / 0)
            self.weight = nn.Parameter(W.clone())

        def forward(self, x):
            try:
                return self.child(x)
            except ZeroDivisionError:
                return F.linear(x.tanh(), self.weight)

    model = integrations.compress_model(nn.Sequential(nn.Linear(64, 64), Careful(), nn.Linear(64, 64)))
    model(X).sum().backward()
    assert [row.module for row in rows(model)] == ["1", "1", "2"]


def test_paths_of_nested_shared_and_repeated_modules():
    class Block(nn.Module):
        def __init__(self, shared):
            super().__init__()
            self.inner, self.shared = nn.Linear(64, 64), shared

        def forward(self, x):
            return self.shared(self.inner(x)) * self.inner(x)

    shared = nn.Linear(64, 64)
    model = integrations.compress_model(nn.Sequential(nn.Linear(64, 64), Block(shared), Block(shared)))
    model(X).sum().backward()
    assert [row.module for row in rows(model, "linear")] == [
        "1.inner",
        "1.shared",
        "1.inner",
        "2.inner",
        "1.shared",
        "2.inner",
    ]
    assert [row.module for row in rows(model, "mul")] == ["1", "1", "2", "2"]


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.side, self.last = (nn.Linear(64, 64) for _ in range(3))
        self.branch = False

    def forward(self, x):
        h = self.first(x)
        aside = 0 * self.side(h * 2).sum() if self.branch else 0
        return self.last(h) + aside


def test_control_flow_may_change_between_steps():
    """A tensor is known by who saves it, not by how many were saved before: what else runs leaves its noise alone."""
    found = []
    for branch in (False, True):
        model = integrations.compress_model(Branches())
        for model.branch in (False, branch):
            model.zero_grad()
            model(X).sum().backward()
        found.append(model.last.weight.grad)
        assert ("side" in [row.module for row in rows(model)]) is branch
    assert torch.equal(*found)


def test_threads_do_not_feel_each_other():
    """Hooks belong to the thread that runs the forward; two forwards of one model may overlap."""
    model = integrations.compress_model(mlp())
    meet = threading.Barrier(2, timeout=60)
    model[3].register_forward_hook(lambda *args: (meet.wait(), None)[1])
    errors = []

    def work():
        try:
            model(X).sum().backward()
            assert_nothing_active()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert integrations.compression(model).step == 2
    assert [row.module for row in rows(model)] == ["1", "2", "3", "4", "5"]
