"""Threads that train at once: copies, one shared model, levels of their own, blocks, and backwards elsewhere."""

import copy
import sys
import threading

import pytest
import torch
from torch import nn

import integrations

from .nets import assert_nothing_active, assert_same, gradients, mlp, normal, rows

X = normal(48, 64)
THREADS = 8
LEVELS = "L1", "lean", "L1.2", "L2"


def at_once(work):
    """What ``work(number)`` returns in each of eight threads that begin together, by number."""
    found, errors, barrier = {}, [], threading.Barrier(THREADS, timeout=60)

    def run(number):
        try:
            barrier.wait()
            found[number] = work(number)
            assert_nothing_active()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    return [found[number] for number in range(THREADS)]


def trained(model, steps=6):
    """The weights after some steps with inputs of changing lengths."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for step in range(steps):
        optimizer.zero_grad()
        model(X[: 48 - step]).square().mean().backward()
        optimizer.step()
    return {name: value.detach().clone() for name, value in model.named_parameters()}


@pytest.mark.parametrize("level", LEVELS)
def test_copies_train_as_they_would_alone(level):
    """Nothing that copies have in common, such as what is known of their functions, depends on who comes first."""
    models = [integrations.compress_model(mlp(), level, seed=3) for _ in range(THREADS // 2)]
    models += [copy.deepcopy(models[0]) for _ in range(THREADS // 2)]
    alone = trained(copy.deepcopy(models[0]))
    for found in at_once(lambda number: trained(models[number])):
        assert_same(alone, found)


def test_each_thread_has_its_level():
    plain = mlp()  # made before the threads begin, which share torch's generator of random numbers

    def work(number):
        return trained(integrations.compress_model(copy.deepcopy(plain), LEVELS[number % 4]))

    alone = [work(number) for number in range(THREADS)]
    found = at_once(work)
    for expected, one in zip(alone, found, strict=True):
        assert_same(expected, one)


@pytest.mark.parametrize("level", ["L1.2", "lean"])
def test_forwards_of_one_model_are_those_of_one_thread_in_some_order(level):
    """Each forward takes the next step's noise, so that the gradients of all are the serial ones."""

    def found(model):
        return [one.clone() for one in torch.autograd.grad(model(X).square().mean(), list(model.parameters()))]

    shared, serial = (integrations.compress_model(mlp(), level) for _ in range(2))
    pairs = [pair for two in at_once(lambda number: [found(shared), found(shared)]) for pair in two]
    assert integrations.compression(shared).step == 2 * THREADS
    for _ in range(2 * THREADS):
        expected = found(serial)
        same = [place for place, one in enumerate(pairs) if all(map(torch.equal, one, expected))]
        assert len(same) == 1
        del pairs[same[0]]
    assert integrations.compression(shared)._sessions == {}


def test_forwards_of_one_model_are_measured_at_once():
    """A thread whose forward drops another's measurement may do so at any moment of that."""
    model = integrations.compress_model(mlp(), "L2", adapt_interval=1)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        at_once(lambda number: [model(X).square().mean().backward() for _ in range(40)])
    finally:
        sys.setswitchinterval(before)
    assert integrations.compression(model).step == 40 * THREADS


def test_a_graph_goes_to_another_thread():
    """Its backward runs there, while this thread's next forward is under way."""
    model = integrations.compress_model(mlp(), "L1.2")
    twin = copy.deepcopy(model)
    parameters = list(model.parameters())
    losses = [model(X).square().mean() for _ in range(THREADS)]
    found = at_once(lambda number: torch.autograd.grad(losses[number], parameters))
    for one in found:
        expected = torch.autograd.grad(twin(X).square().mean(), list(twin.parameters()))
        assert all(map(torch.equal, one, expected))


def test_a_block_is_its_threads_alone():
    model, inside, left = mlp(), threading.Event(), threading.Event()
    plain, found = gradients(copy.deepcopy(model), X), {}

    def elsewhere():
        inside.wait(60)
        found["plain"] = torch.autograd.grad(model(X).square().mean(), list(model.parameters()))
        left.set()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    with integrations.compress(model, "L1.2") as handle:
        inside.set()
        assert left.wait(60)
        assert handle._records == []
        compressed = torch.autograd.grad(model(X).square().mean(), list(model.parameters()))
    thread.join()
    assert_same(plain, dict(zip(plain, found["plain"], strict=True)))
    assert not all(map(torch.equal, compressed, plain.values()))


def test_each_thread_may_open_a_block_of_one_model():
    """Every block has a report of its own, and they share what was measured."""
    model = mlp()

    def blocks(number):
        seen = []
        for _ in range(4):
            with integrations.compress(model, "L2.2") as handle:
                torch.autograd.grad(model(X).square().mean(), list(model.parameters()))
            seen.append((handle.step, len(handle.report().rows)))
        return seen

    seen = [one for several in at_once(blocks) for one in several]
    assert sorted(step for step, _ in seen) == list(range(1, 4 * THREADS + 1))
    assert len({count for _, count in seen}) == 1


def test_a_model_is_restored_while_another_one_trains():
    model, other = integrations.compress_model(mlp(), "L1"), mlp()
    for _ in range(2):
        model(X).sum().backward()

    def work(number):
        if number % 2:
            return trained(copy.deepcopy(model))
        for _ in range(5):
            own = integrations.compress_model(copy.deepcopy(other), "L1")
            own(X).sum().backward()
            integrations.restore_model(own)
        return gradients(own, X)

    found = at_once(work)
    assert_same(found[1], found[3])
    assert_same(found[0], gradients(other, X))
    assert rows(model)


def test_threads_that_share_a_plan_have_exact_gradients():
    """The first of them plans, and the others wait for it; an error of 0 leaves every gradient as it is."""
    torch.manual_seed(0)
    plain = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.Tanh(), nn.Tanh())))
    model = integrations.compress_model(copy.deepcopy(plain), memory=0.75, error=0)
    expected = torch.autograd.grad(plain(X).square().mean(), list(plain.parameters()))

    def work(number):
        return [torch.autograd.grad(model(X).square().mean(), list(model.parameters())) for _ in range(3)]

    for several in at_once(work):
        for found in several:
            assert all(map(torch.equal, found, expected))


def test_inputs_of_other_shapes_are_planned_for_while_others_train():
    """A capture exchanges the model's parameters for fake ones, and waits for forwards that are under way."""
    torch.manual_seed(0)
    plain = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.Tanh(), nn.Tanh())))
    model = integrations.compress_model(copy.deepcopy(plain), memory=0.75, error=0)
    expected = torch.autograd.grad(plain(X).square().mean(), list(plain.parameters()))
    parameters, planned = list(model.parameters()), threading.Event()

    def work(number):
        if number == 0:
            for rows in range(64, 64 + 16 * 5, 16):
                model(normal(rows, 64)).sum().backward()
            planned.set()
        count = 0
        while not planned.is_set() or not count:
            count += 1
            found = torch.autograd.grad(model(X).square().mean(), parameters)
            assert all(map(torch.equal, found, expected))
        return count

    assert min(at_once(work)) > 0
    assert len(integrations.compression(model)._plan_manager.plans._plans) > 3
