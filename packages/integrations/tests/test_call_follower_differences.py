"""``CallFollower``: a forward that differs from the recorded one has a tape again, and right gradients."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode, wrap_torch_function
from torch.utils._python_dispatch import TorchDispatchMode

from integrations.capture.capture import capture
from integrations.runtime.repeating.call_follower import CallFollower
from integrations.runtime.repeating.recording import Recording

from .followed_forwards import Log, log_forwards, outcome, same
from .nets import Net, normal
from .recompute_run import run


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> Log:
    return log_forwards(monkeypatch)


def base(model: Any, x: Tensor) -> Tensor:
    """A forward of which ``changed`` changes one thing; all tensors that are saved have the same forms."""
    y = torch.tanh(x @ model.weight)
    z = model.change(model, y)
    return (z.exp() * y).sum()


def put(y: Tensor, place: Tensor, row: Tensor) -> Tensor:
    z = y * 2
    z[place] = row
    return z


def under_no_grad(model: Any, y: Tensor) -> Tensor:
    with torch.set_grad_enabled(not model.changed):
        z = y.sin() + 1
    return z + y


CHANGED: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "a number": lambda model, y: torch.add(y, y.sin(), alpha=3 if model.changed else 2),
    "the sign of zero": lambda model, y: torch.atan2(
        y * 0, torch.full_like(y, -1.0) * (0.0 if model.changed else -0.0)
    ),
    "the order": lambda model, y: torch.sub(*((y.sin(), y.cos())[:: -1 if model.changed else 1])),
    "another function": lambda model, y: y.sin() if model.changed else y.cos(),
    "another function without a node": lambda model, y: y * (torch.sin if model.changed else torch.cos)(y.detach()),
    "a view": lambda model, y: torch.mul(y.sin().t() if model.changed else y.sin().t().t(), y),
    "another parameter": lambda model, y: y.sin() * (model.other if model.changed else model.weight),
    "how much is dropped": lambda model, y: F.dropout(y.sin(), 0.5 if model.changed else 0.1),
    "in place": lambda model, y: y.sin().mul_(2) if model.changed else y.sin().mul(2),
    "gradients": under_no_grad,
    "a copy": lambda model, y: (y.sin().clone() if model.changed else y.sin().t().t()).reshape(8, 8).cos(),
    "one more": lambda model, y: (y.sin().relu() if model.changed else y.sin()) + y,
    "one less": lambda model, y: y.sin() if model.changed else y.sin().cos(),
    "what is looked at": lambda model, y: y.sin() * (y.sum().item() if model.changed else 0.5),
    "who needs gradients": lambda model, y: (y.detach() if model.changed else y).sin() * y,
    "who shares memory": lambda model, y: (
        y * torch.mul(model.other, model.other if not model.changed else model.weight)
    ),
    "a number in a tensor": lambda model, y: torch.add(y, y.sin(), alpha=torch.tensor(3 if model.changed else 2)),
    "an index in a tensor": lambda model, y: put(y.sin(), torch.tensor(3 if model.changed else 2), y.cos()[0]),
    "a slope in a tensor": lambda model, y: F.leaky_relu(y, torch.tensor(0.5 if model.changed else 0.1)),
    "a slice": lambda model, y: torch.cat([y[1:] if model.changed else y[:-1], y[:1]]).sin(),
}


@pytest.mark.parametrize("change", CHANGED)
def test_where_a_forward_differs(change: str, followed: Log) -> None:
    """A tape takes over, or does from the next forward on, and no gradient is another than the plain one."""
    model = Net(base, weight=normal(8, 8), other=normal(8, 8, seed=1)).train()
    model.change, model.changed = CHANGED[change], False
    args = (normal(8, 8, seed=2),)
    twin = copy.deepcopy(model)
    forward = run(model, capture(model, args, {}), ())
    for changed in (False, False, True, False, True, True, False):
        model.changed = twin.changed = changed
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found, _ = outcome(forward, model, args, {})
        assert same(found, outcome(twin, twin, args, {})[0])
    if " in a tensor" in change:  # no operator reads it
        assert set(followed) == {"tape"}
    else:
        assert followed[:2] == ["tape", "calls"]
        assert followed[2] in ("both", "calls")


def test_a_changed_number_costs_no_memory(followed: Log) -> None:
    """The tape goes on with the plan where another function would end it."""
    model = Net(deep, weight=normal(64, 64)).train()
    model.scale = 1.0
    args = (normal(64, 64, seed=2),)
    forward = run(model, capture(model, args, {}), ())
    peaks = []
    for scale in (1.0, 1.0, 0.5, 0.5):
        model.scale = scale
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            peaks.append(outcome(forward, model, args, {})[1])
    assert followed == ["tape", "calls", "both", "tape"]
    assert max(peaks) == peaks[0]


def deep(model: Any, x: Tensor) -> Tensor:
    for _ in range(8):
        x = torch.tanh((x * model.scale) @ model.weight).sin()
    return x.sum()


def failing(model: Any, x: Tensor) -> Tensor:
    y = x * model.weight
    if model.fails:
        with pytest.raises(RuntimeError, match="size"):
            torch.add(y, torch.ones(3))
    return (y.sin().exp() * model.weight).sum()


def test_a_function_that_fails_and_is_caught(followed: Log) -> None:
    model = Net(failing, weight=normal(8)).train()
    model.fails = False
    args = (normal(8),)
    twin = copy.deepcopy(model)
    forward = run(model, capture(model, args, {}), ())
    for fails in (False, False, True, False):
        model.fails = fails
        assert same(outcome(forward, model, args, {})[0], outcome(twin, twin, args, {})[0])
    assert followed[:2] == ["tape", "calls"]


def test_an_error_that_ends_the_forward(followed: Log) -> None:
    """The lock of those that draw is given back, and the next forward is right."""

    def forward_of(model: Any, x: Tensor) -> Tensor:
        y = F.dropout(x * model.weight, model.p)
        return (y.sin() * y).sum()

    model = Net(forward_of, weight=normal(8)).train()
    model.p = 0.5
    args = (normal(8),)
    forward = run(model, capture(model, args, {}), ())
    first, _ = outcome(forward, model, args, {})
    model.p = 2.0
    with pytest.raises(ValueError, match="dropout probability"):
        forward(*args)
    model.p = 0.5
    done = []
    thread = threading.Thread(target=lambda: done.append(outcome(forward, model, args, {})[0]))
    thread.start()
    thread.join(60)
    assert same(done[0], first)


class Doubling(TorchFunctionMode):
    """A mode that changes the arguments of a function."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = (args[0] * 2,) if func is torch.sin else args
        return func(*args, **(kwargs or {}))


class Negating(TorchDispatchMode):
    """The same of an operator."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = (-args[0],) if func is torch.ops.aten.cos.default else args
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("mode", [Doubling, Negating, nullcontext])
@pytest.mark.parametrize("first", [False, True])
def test_modes_of_the_user(mode: Any, first: bool, inside: bool, followed: Log) -> None:
    """They may do anything, each time something else, and be there in some forwards only."""

    def forward_of(model: Any, x: Tensor) -> Tensor:
        y = torch.tanh(x * model.weight)
        with mode() if inside and model.changed else nullcontext():
            z = torch.sin(y).exp() + torch.cos(y).exp()
        return (z * y).sum()

    model = Net(forward_of, weight=normal(8)).train()
    model.changed = False
    args = (normal(8),)
    twin = copy.deepcopy(model)
    forward = run(model, capture(model, args, {}), ())
    for changed in (first, first, not first, not first, first):
        model.changed = twin.changed = changed
        with warnings.catch_warnings(), mode() if changed and not inside else nullcontext():
            warnings.simplefilter("ignore")
            assert same(outcome(forward, model, args, {})[0], outcome(twin, twin, args, {})[0])
    if mode is nullcontext:
        assert set(followed[1:]) == {"calls"}


def test_autocast_that_changes(followed: Log) -> None:
    """It is no argument of a function. Here it changes the number of autograd nodes, and one that is saved."""

    def forward_of(model: Any, x: Tensor) -> Tensor:
        y = torch.tanh(x @ model.weight)
        with torch.autocast("cpu", model.dtype, enabled=model.dtype is not None):
            z = F.linear(y, model.weight).float()
        return (z.sin() * y).sum()

    model = Net(forward_of, weight=normal(8, 8)).train()
    args = (normal(8, 8),)
    for first, second in ((torch.bfloat16, torch.float16), (torch.bfloat16, None), (None, torch.bfloat16)):
        model.dtype = first
        twin = copy.deepcopy(model)
        forward = run(model, capture(model, args, {}), ())
        for dtype in (first, first, second, first):
            model.dtype = twin.dtype = dtype
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert same(outcome(forward, model, args, {})[0], outcome(twin, twin, args, {})[0])


def test_a_backward_inside_of_the_forward(followed: Log) -> None:
    """It uses segments up, with a retained graph or without."""

    def forward_of(model: Any, x: Tensor) -> Tensor:
        y = (x * model.weight).sin()
        if model.backward:
            torch.autograd.grad(y.exp().sum(), model.weight, retain_graph=model.retain)
            y = (x * model.weight).sin()
        return (y.cos().exp() * x).sum()

    model = Net(forward_of, weight=normal(8)).train()
    model.backward = model.retain = True
    args = (normal(8),)
    twin = copy.deepcopy(model)
    forward = run(model, capture(model, args, {}), ())
    for backward, retain in ((True, True), (True, True), (True, False), (False, True), (True, False), (True, True)):
        model.backward, model.retain = backward, retain
        twin.backward, twin.retain = backward, retain
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert same(outcome(forward, model, args, {})[0], outcome(twin, twin, args, {})[0])


def test_vmap_in_the_forward(followed: Log) -> None:
    """Its tensors have no storage to ask for."""

    def forward_of(model: Any, x: Tensor) -> Tensor:
        y = torch.tanh(x * model.weight)
        with torch.no_grad():
            mask = torch.vmap(lambda one: one > 0)(x) if model.changed else x > 0
        return (y.sin() * mask).sum()

    model = Net(forward_of, weight=normal(8)).train()
    model.changed = False
    args = (normal(4, 8),)
    twin = copy.deepcopy(model)
    forward = run(model, capture(model, args, {}), ())
    for changed in (False, False, True, True, False):
        model.changed = twin.changed = changed
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert same(outcome(forward, model, args, {})[0], outcome(twin, twin, args, {})[0])


@pytest.mark.usefixtures("followed")
def test_why_a_forward_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be followed by its functions has a tape in each forward."""
    obstacles = []
    finish = Recording.finish

    def noted(self: Recording) -> Any:
        trace = finish(self)
        obstacles.append(self.obstacle)
        return trace

    monkeypatch.setattr(Recording, "finish", noted)

    def scripted(model: Any, x: Tensor) -> Tensor:
        return (SCRIPT(x * model.weight).sin() * x).sum()

    model = Net(scripted, weight=normal(8)).train()
    args = (normal(8),)
    forward = run(model, capture(model, args, {}), ())
    for _ in range(3):
        outcome(forward, model, args, {})
    assert obstacles == ["an operator ran outside of torch's functions"] * 2

    del obstacles[:]
    model = Net(lambda model, x: (normed(x * model.weight).sin() * x).sum(), weight=normal(8)).train()
    forward = run(model, capture(model, args, {}), ())
    for _ in range(3):
        outcome(forward, model, args, {})
    assert len(obstacles) == 2
    assert "normed is not torch's own" in obstacles[0]


FACTOR = {"factor": 2.0, "dtype": torch.float32}


@wrap_torch_function(lambda x: (x,))
def normed(x: Tensor) -> Tensor:
    """A function whose result follows from more than its arguments."""
    return (F.layer_norm(x, (8,)) * FACTOR["factor"]).to(FACTOR["dtype"])


def test_what_was_left_out_in_vain_is_kept(monkeypatch: pytest.MonkeyPatch, followed: Log) -> None:
    """If a function returns something else after all, tensors that it has made and saved before are not recomputed by
    what the other one did."""
    monkeypatch.setattr(normed, "__module__", "torch")
    model = Net(lambda model, x: (normed(x * model.weight).double().sin() * x).sum(), weight=normal(8)).train()
    args = (normal(8),)
    twin = copy.deepcopy(model)
    forward = run(model, capture(model, args, {}), ())
    for dtype in (torch.float32, torch.float32, torch.bfloat16):
        monkeypatch.setitem(FACTOR, "dtype", dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert same(outcome(forward, model, args, {})[0], outcome(twin, twin, args, {})[0])
    assert followed == ["tape", "calls", "calls"]


@torch.jit.script
def SCRIPT(x: Tensor) -> Tensor:
    return x.exp() * 2


def test_it_is_freed_with_the_forward(followed: Log, no_garbage_collection: None) -> None:
    import gc

    model = Net(deep, weight=normal(8, 8)).train()
    model.scale = 1.0
    args = (normal(8, 8),)
    forward = run(model, capture(model, args, {}), ())
    for _ in range(3):
        output = forward(*args)
        del output
    assert followed[-1] == "calls"
    assert not [one for one in gc.get_objects() if type(one) is CallFollower]
