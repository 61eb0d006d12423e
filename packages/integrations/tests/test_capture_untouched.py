"""After a capture everything is as it was: weights, attributes, hooks, containers, classes, globals."""

import functools
import gc
import threading
import warnings
from collections import OrderedDict, deque
from typing import ClassVar

import pytest
import torch
from torch import nn

import integrations
from integrations import checkpoint

from .heap import changes, snapshot
from .nets import Net, mlp, normal

CACHE = {}
LAST = None


pytestmark = pytest.mark.usefixtures("alone", "no_fakes")


@pytest.fixture(autouse=True)
def empty_caches():
    """What a forward of ``Caching`` fills outside of its model is empty again for the next test."""
    global LAST
    yield
    LAST = None
    CACHE.clear()
    Caching.of_class.clear()
    if hasattr(Caching, "made_late"):
        del Caching.made_late
    cached.cache_clear()
    cached_by_some.cache_clear()


@pytest.mark.parametrize("real", [False, True], ids=["fake", "real"])
def test_weights_stay_where_one_module_has_two_names(real):
    layer = nn.Linear(16, 16)
    model = nn.Sequential(layer, nn.Tanh(), layer).train()
    before = dict(model.named_parameters(remove_duplicate=False))
    plan = checkpoint.plan(model, normal(4, 16), real=real)
    after = dict(model.named_parameters(remove_duplicate=False))
    assert before.keys() == after.keys()
    assert all(before[name] is after[name] for name in before)
    assert plan.graph.gradients == sum(parameter.numel() * 4 for parameter in model.parameters())


@pytest.mark.parametrize(
    "put",
    [
        lambda model, x: checkpoint.optimal_grad_checkpointing(model, x),
        lambda model, x: integrations.compress_model(model, "L1", checkpoint="optimal"),
    ],
    ids=["optimal_grad_checkpointing", "compress_model"],
)
def test_weights_stay_by_every_call_that_plans(put):
    layer = nn.Linear(16, 16)
    model = nn.Sequential(layer, nn.Tanh(), layer).train()
    put(model, normal(4, 16))(normal(4, 16)).sum().backward()
    assert type(model[0].weight) is nn.Parameter
    assert model[0].weight.grad is not None


def test_a_replan_in_a_forward_leaves_weights_with_two_names():
    layer = nn.Linear(16, 16)
    model = nn.Sequential(layer, nn.Tanh(), layer).train()
    checkpoint.apply(model, checkpoint.plan(model, normal(4, 16)))
    weight = model[0].weight
    model(normal(8, 16)).sum().backward()  # larger: planned for in this forward
    assert model[0].weight is weight
    assert weight.grad is not None


class Caching(nn.Linear):
    """Fills every kind of cache that modules have been seen to fill."""

    of_class: ClassVar = {}
    made_late: torch.Tensor

    def __init__(self):
        super().__init__(8, 8)
        self.own, self.listed, self.recent = {}, [], deque(maxlen=2)
        self.nested = {"inner": [{}]}
        self.kinds = set()

    def forward(self, x):
        global LAST
        y = super().forward(x)
        for cache in (self.of_class, self.own, self.nested["inner"][0], CACHE):
            if len(x) not in cache:
                cache[len(x)] = torch.ones(len(x), 1)
            y = y * cache[len(x)]
        self.listed.append(y)
        self.recent.append(y)
        self.kinds.add(y.dtype)
        Caching.made_late = y
        self.new = y
        LAST = y
        return y * cached(len(x)) * cached_by_some(len(x))[0]


@functools.cache
def cached(size):
    return torch.ones(size, 1)


@functools.lru_cache(maxsize=4)
def cached_by_some(size):
    return [torch.ones(size, 1)]


@pytest.mark.parametrize("real", [False, True], ids=["fake", "real"])
def test_caches_are_as_they_were(real):
    model, x = Caching().train(), normal(4, 8)
    before = snapshot(model)
    checkpoint.plan(model, x, real=real)
    assert not changes(before)
    assert (model.own, model.of_class, CACHE, model.nested, model.listed) == ({}, {}, {}, {"inner": [{}]}, [])
    assert (list(model.recent), model.kinds, LAST) == ([], set(), None)
    assert not hasattr(Caching, "made_late")
    assert not hasattr(model, "new")
    assert cached.cache_info().currsize == cached_by_some.cache_info().currsize == 0
    assert all(type(found) is torch.Tensor for found in (cached(4), *cached_by_some(4)))


def test_what_was_there_is_there_again():
    model, x = Caching().train(), normal(4, 8)
    known = torch.full((4, 1), 2.0)
    model.own[4] = known
    model.listed += [known, known]
    model.new = known
    checkpoint.plan(model, x)
    assert model.own[4] is known
    assert len(model.listed) == 2
    assert model.new is known


class Made(OrderedDict):
    """Makes what it is asked for, as transformers' table of activations does: none is asked for by a walk."""

    def __getitem__(self, key):
        raise AssertionError(f"{key} was asked for")


@pytest.mark.parametrize("real", [False, True], ids=["fake", "real"])
def test_a_table_that_makes_what_it_is_asked_for_is_not_asked(real):
    model, x = nn.Linear(8, 8).train(), normal(4, 8)
    entries = {"one": torch.ones(1), "other": nn.ReLU}
    model.table = Made(entries)
    checkpoint.plan(model, x, real=real)
    assert dict(dict.items(model.table)) == entries
    integrations.forecast(model, x)


def test_a_forecast_leaves_caches_of_classes_and_globals_as_they_were():
    model, x = Caching().train(), normal(4, 8)
    integrations.forecast(model, x)
    assert (Caching.of_class, CACHE, LAST) == ({}, {}, None)
    assert cached.cache_info().currsize == cached_by_some.cache_info().currsize == 0


@pytest.mark.parametrize("real", [False, True], ids=["fake", "real"])
def test_hooks_leave_nothing(real):
    model, seen, calls = mlp().train(), [], {"forward": 0}

    class Counter:
        __slots__ = ("count",)

        def __init__(self):
            self.count = 0

        def __call__(self, module, inputs, output):
            self.count += 1

    total = 0

    def count(module, inputs):
        nonlocal total
        total += 1
        calls["forward"] += 1

    counter = Counter()
    model[0].register_forward_hook(lambda module, inputs, output: seen.append(output))
    model[1].register_forward_pre_hook(count)
    model[2].register_forward_hook(counter)
    model[2].register_forward_hook(functools.partial(lambda out, *given: out.append(1), seen))
    everywhere = nn.modules.module.register_module_forward_hook(lambda module, inputs, output: seen.append(output))
    try:
        checkpoint.plan(model, normal(4, 64), real=real)
    finally:
        everywhere.remove()
    assert (seen, calls, total, counter.count) == ([], {"forward": 0}, 0, 0)


def test_hooks_that_a_forward_installs_are_installed_once():
    """transformers' models install those that capture outputs in their first forward."""

    class Installing(nn.Linear):
        def forward(self, x):
            if not hasattr(self, "installed"):
                self.installed = True
                self.register_forward_hook(lambda module, inputs, output: output + 1)
            return super().forward(x)

    model, x = nn.Sequential(Installing(8, 8)).train(), normal(2, 8)
    checkpoint.plan(model, x)
    assert not model[0]._forward_hooks
    model(x)
    assert len(model[0]._forward_hooks) == 1


def test_attributes_that_are_no_parameters_are_not_written():
    class Averaging(nn.Linear):
        def __init__(self):
            super().__init__(8, 8)
            self.mean, self.history = torch.zeros(8), {"means": [torch.zeros(8)]}

        def forward(self, x):
            self.mean.mul_(0.9).add_(x.detach().mean(0))
            return super().forward(x) + self.mean

    for real in (False, True):
        model = Averaging().train()
        mean = model.mean
        checkpoint.plan(model, normal(4, 8), real=real)
        assert model.mean is mean
        assert not mean.any()


def test_an_rnns_weights_are_those_in_its_list():
    model = Net(lambda self, x: self.lstm(x)[0])
    model.lstm = nn.LSTM(4, 8, batch_first=True)
    flat = list(model.lstm._flat_weights)
    plan = checkpoint.plan(model.train(), normal(2, 5, 4))
    assert all(one is other for one, other in zip(model.lstm._flat_weights, flat, strict=True))
    assert all(weight.grad is None for weight in flat)
    assert plan.graph.gradients == sum(weight.numel() * 4 for weight in flat)


def test_a_teacher_that_a_forward_closes_over_is_left_alone():
    teacher = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).train()
    model = Net(lambda self, x: (x @ self.w - teacher(x)).square(), w=torch.eye(8)).train()
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    for real in (False, True):
        checkpoint.plan(model, normal(4, 8), real=real)
        assert all(torch.equal(before[name], tensor) for name, tensor in teacher.state_dict().items())
        assert all(parameter.grad is None for parameter in teacher.parameters())


def test_a_forward_that_raises_leaves_nothing_either():
    class Failing(Caching):
        def forward(self, x):
            super().forward(x)
            raise OSError("disk")

    model = Failing().train()
    before = snapshot(model)
    with pytest.raises(OSError, match="disk"):
        checkpoint.plan(model, normal(4, 8))
    assert not changes(before)
    assert type(model.weight) is nn.Parameter


def test_with_other_threads_tensors_are_put_back_too(monkeypatch):
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread(), threading.Thread()])
    model, x = Caching().train(), normal(4, 8)
    checkpoint.plan(model, x)
    assert (model.own, model.of_class, CACHE, model.listed, list(model.recent)) == ({}, {}, {}, [], [])
    assert LAST is None


class Slots:
    __slots__ = ("keys",)


class Attributes:
    def __init__(self):
        self.keys = None


@pytest.mark.parametrize("kind", [Slots, Attributes])
@pytest.mark.parametrize("real", [False, True], ids=["fake", "real"])
def test_objects_that_a_forward_is_given_are_as_they_were(kind, real):
    def forward(self, x, cache):
        h = torch.tanh(x @ self.w)
        cache.keys = h if cache.keys is None else torch.cat([cache.keys, h], 1)
        return cache.keys @ self.w

    model, x, cache = Net(forward, w=torch.eye(8)).train(), normal(2, 4, 8), kind()
    cache.keys = None
    plan = checkpoint.plan(model, (x, cache), real=real)
    assert cache.keys is None
    checkpoint.apply(model, plan)
    model(x, cache).sum().backward()
    keys = cache.keys = cache.keys.detach()
    checkpoint.restore_model(model)
    checkpoint.plan(model, (x, cache), real=real)
    assert cache.keys is keys


def test_parameters_can_be_swapped_after_a_plan():
    """torch refuses to swap what has weak references, which a mode of fake tensors keeps of what it is given."""
    model = mlp().train()
    gc.disable()
    try:
        checkpoint.plan(model, normal(4, 64))
        torch.__future__.set_swap_module_params_on_conversion(True)
        model.double()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
        gc.enable()
    assert model[0].weight.dtype is torch.float64


def test_a_cache_that_the_first_step_fills_is_filled_by_it():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, x = Caching().train(), normal(4, 8)
        checkpoint.apply(model, checkpoint.plan(model, x))
        model(x).sum().backward()
    assert type(model.own[4]) is torch.Tensor
