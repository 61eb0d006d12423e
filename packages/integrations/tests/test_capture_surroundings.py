"""What a capture leaves alone, because it is another's or lasts; and what is put back in odd places."""

import contextvars
import functools
import threading
import types
import weakref
from collections import deque
from typing import ClassVar

import pytest
import torch
from torch import nn

from integrations import checkpoint

from .nets import Net, normal

pytestmark = pytest.mark.usefixtures("alone", "no_fakes")

head = nn.Linear(8, 8)
REGISTERED = False
COUNTER = torch.zeros((), dtype=torch.long)


def test_a_global_that_has_an_attributes_name_is_not_reached():
    """Another thread may train it: its weights stay where they are, and its gradients."""

    class Headed(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(8, 8)

        def forward(self, x):
            seen.append(type(find_head("head").weight) is nn.Parameter and id(find_head("head").weight.grad) == known)
            return self.head(x)

    seen = []
    find_head = globals().__getitem__
    head.weight.grad = torch.ones(8, 8)
    known = id(head.weight.grad)
    checkpoint.plan(Headed().train(), normal(4, 8))
    assert seen == [True]


def test_what_another_thread_did_meanwhile_stays(monkeypatch):
    class Fed(nn.Linear):
        def __init__(self):
            super().__init__(8, 8)
            self.buffer, self.stats = deque(), {"fed": 0}

        def forward(self, x):
            feed.set()
            fed.wait()
            return super().forward(x)

    feed, fed = threading.Event(), threading.Event()
    model = Fed().train()

    def feeder():
        feed.wait()
        model.buffer.extend(range(5))
        model.stats["fed"] += 5
        fed.set()

    thread = threading.Thread(target=feeder)
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread(), thread])
    thread.start()
    checkpoint.plan(model, normal(4, 8))
    thread.join()
    assert (list(model.buffer), model.stats) == ([0, 1, 2, 3, 4], {"fed": 5})
    assert type(model.weight) is nn.Parameter


def test_what_is_done_once_is_known_to_be_done():
    done = []

    def setup():
        global REGISTERED
        if not REGISTERED:
            done.append("as an operator is registered")
            REGISTERED = True

    class Setting(nn.Linear):
        def forward(self, x):
            setup()
            return super().forward(x)

    model, x = Setting(8, 8).train(), normal(4, 8)
    checkpoint.plan(model, x)
    model(x)
    assert REGISTERED


class Frozen(list):
    def clear(self):
        raise OSError("frozen")


class Slotted:
    __slots__ = ("x", "y")


class Named(Slotted):
    @property
    def x(self):
        return 7

    def __getattr__(self, name):
        return "anything"


class Answering:
    def __getattr__(self, name):
        return "anything"


@pytest.mark.parametrize("real", [False, True], ids=["fake", "real"])
def test_odd_objects_are_no_obstacle(real):
    model, x = nn.Linear(8, 8).train(), normal(4, 8)
    model.frozen, model.named, model.answering = Frozen([1]), Named(), Answering()

    def hook(module, inputs, output):
        module.frozen.append(output)
        module.named.y = output

    model.register_forward_hook(hook)
    gradient = model.weight.grad = torch.ones(8, 8)
    checkpoint.plan(model, x, real=real)
    assert model.weight.grad is gradient
    assert list(model.frozen) == [1]
    assert model.named.y == "anything"


LOCAL, VARIABLE, WEAK = threading.local(), contextvars.ContextVar("cache", default=None), weakref.WeakKeyDictionary()


class Found:
    def __init__(self, tensor):
        self.tensor = tensor


@functools.cache
def found(size):
    return Found(torch.ones(size, 1))


def test_caches_in_odd_places():
    class Odd(nn.Linear):
        def forward(self, x):
            if not hasattr(LOCAL, "cache"):
                LOCAL.cache = torch.ones(len(x), 1)
            if VARIABLE.get() is None:
                VARIABLE.set(torch.ones(len(x), 1))
            if self not in WEAK:
                WEAK[self] = torch.ones(len(x), 1)
            return super().forward(x) * LOCAL.cache * VARIABLE.get() * WEAK[self] * found(len(x)).tensor

    model, x = Odd(8, 8).train(), normal(4, 8)
    checkpoint.plan(model, x)
    assert not hasattr(LOCAL, "cache")
    assert VARIABLE.get() is None
    assert not len(WEAK)
    assert not found.cache_info().currsize


@pytest.mark.parametrize("real", [False, True], ids=["fake", "real"])
def test_elements_of_tensors_in_containers_are_not_written(real):
    class Counting(nn.Linear):
        def __init__(self):
            super().__init__(8, 8)
            self.counts = {"steps": torch.zeros((), dtype=torch.long), "means": [torch.zeros(8)]}

        def forward(self, x):
            self.counts["steps"] += 1
            self.counts["means"][0] += 1
            COUNTER.add_(1)
            return super().forward(x)

    model, hooked = Counting().train(), torch.zeros((), dtype=torch.long)
    model.register_forward_hook(lambda module, inputs, output: hooked.add_(1) and None)
    checkpoint.plan(model, normal(4, 8), real=real)
    assert not any((model.counts["steps"], model.counts["means"][0].any(), COUNTER, hooked))


def test_a_generator_of_the_users_own_does_not_move():
    generator = torch.Generator()
    model = Net(lambda self, x: x @ self.w + torch.randn(8, generator=generator), w=torch.eye(8)).train()
    state = generator.get_state()
    checkpoint.plan(model, normal(4, 8), real=True)
    assert torch.equal(generator.get_state(), state)


@pytest.mark.parametrize("real", [False, True], ids=["fake", "real"])
@pytest.mark.parametrize(
    "inner",
    [
        lambda h: torch.func.jvp(torch.tanh, (h,), (torch.ones_like(h),))[1],
        lambda h: torch.utils.dlpack.from_dlpack(h.detach()).requires_grad_(),
    ],
    ids=["jvp", "dlpack"],
)
def test_tensors_with_a_size_and_no_memory(inner, real):
    """Zeros that torch does not write out, and what DLPack makes of fake tensors: both were read at address 0."""
    model = Net(lambda self, x: inner(x @ self.w) @ self.w, w=torch.eye(8)).train()
    assert checkpoint.plan(model, normal(4, 8), real=real).graph.ops


STATIC, OF_CLASS, OF_PROPERTY, OF_INNER = {}, {}, {}, {}
STATE = types.ModuleType("state")  # as a Python module of the user's


def with_keyword(x, *, cache={}):  # noqa: B006  # as code that caches in a default
    cache[len(x)] = x


class WithTable(nn.Linear):
    of_base: ClassVar = {}


class Roundabout(WithTable):
    """Fills caches that only other code than its forward names."""

    def __init__(self):
        super().__init__(8, 8)
        self.ordered = {"first": 1, "second": 2}

    @staticmethod
    def note_static(x):
        STATIC[len(x)] = x

    @classmethod
    def note_class(cls, x):
        OF_CLASS[len(x)] = x

    @property
    def noted(self):
        OF_PROPERTY[0] = self.weight + 1
        return None

    def forward(self, x):
        y = super().forward(x)
        self.note_static(y)
        self.note_class(y)
        self.noted  # noqa: B018
        (lambda: OF_INNER.setdefault(len(x), y))()
        with_keyword(y)
        STATE.last = y
        self.of_base[len(x)] = y
        self.ordered["first"] = self.ordered.pop("first")
        return y


def test_caches_that_a_forward_reaches_through_other_code():
    noted = []
    hook = nn.modules.module.register_module_forward_hook(lambda module, args, output: noted.append(output))
    model, x = Roundabout().train(), normal(4, 8)
    try:
        checkpoint.plan(model, x)
    finally:
        hook.remove()
    assert (STATIC, OF_CLASS, OF_PROPERTY, OF_INNER) == ({}, {}, {}, {})
    assert with_keyword.__kwdefaults__ == {"cache": {}}
    assert not hasattr(STATE, "last")
    assert WithTable.of_base == {}
    assert list(model.ordered) == ["first", "second"]
    assert noted == []
