"""GACT's known defects in how it stepped, one test each: what its code got wrong, here right.

Those in what it stored, G1 to G5, G12, G13, G20 and G22, are in ``test_gact_defects_storage.py``.

G9, the memory that an adaptation takes, is in ``test_adaptive_memory.py``; G19 and G23, of its benchmark scripts, are
in ``packages/bench/tests/test_gact_scripts.py``. G17, its README's example, is trained in
``packages/bench/tests/test_gact_readme.py``. Many of these have thorough tests of their own beside this file.
"""

import ast
import copy
import random
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import integrations
from actcore.codecs import group_affine
from integrations import saved as gact
from integrations.runtime import replay_cache
from integrations.saved import Controller
from integrations.saved.controller import Config

from .nets import EIGHT_BITS, assert_same, gradients, mlp, normal, relative_error, rows

X = normal(48, 64)


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    monkeypatch.setattr("integrations.saved.controller.config", Config())


def controlled(model, level):
    gact.set_optimization_level(level)
    controller = Controller(model)
    controller.install_hook()
    return controller


def test_g06_control_flow_may_change_and_forwards_are_not_counted():
    """A tensor that was not there in the first step was a KeyError; forwards without ``iterate`` grew the names."""

    class Dynamic(nn.Module):
        depth = 1

        def __init__(self):
            super().__init__()
            self.net = mlp(depth=4)

        def forward(self, x):
            return self.net[: 2 * self.depth](x)

    model = Dynamic()
    controller = controlled(model, "L1.1")
    for depth in (1, 4, 2, 3):
        model.depth = depth
        plain = Dynamic()
        plain.depth = depth
        for _ in range(2):
            found = gradients(model, X)
            assert relative_error(gradients(plain, X), found) < EIGHT_BITS
        controller.iterate(lambda: model(X).sum().backward())
        assert len(rows(model)) == 2 * depth - 1


def test_g07_levels_leave_nothing_behind():
    for before, level in (("L0", "L2"), ("L3", "L1"), ("swap", "L1.2")):
        gact.set_optimization_level(before)
        gact.set_optimization_level(level)
        assert Controller(mlp()).level == integrations.LEVELS[level]


def test_g08_hooks_of_others_stay():
    """Uninstalled twice, and collected: somebody else's hooks are still there."""
    controller = controlled(mlp(), "L1")
    seen = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: seen.append(1) or tensor, lambda tensor: tensor):
        controller.uninstall_hook()
        controller.uninstall_hook()
        del controller
        torch.ones(3, requires_grad=True).exp()
    assert seen == [1]


@pytest.mark.parametrize("level", ["L1", "L2"])
def test_g10_no_generator_is_touched(level):
    """Dropout after an adaptation depended on the number of the step, and no more on the user's seed."""
    found = []
    for name in ("L0", level):
        model = nn.Sequential(*mlp(), nn.Dropout(0.5))
        controller = controlled(model, name)
        torch.manual_seed(7)
        random.seed(7)
        for _ in range(3):
            controller.iterate(lambda model=model: model(X).sum().backward())
        found.append((torch.get_rng_state(), random.getstate()))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


def test_g11_no_tensor_has_the_noise_of_another_a_step_before(monkeypatch):
    streams = []
    compress = replay_cache.COMPRESS

    def noted(*args):
        streams.append(args[-1])
        return compress(*args)

    monkeypatch.setattr(group_affine, "_COMPRESS_INT", noted)
    monkeypatch.setattr(replay_cache, "COMPRESS", noted)  # of what was decided a step before
    model = integrations.compress_model(mlp(), min_bytes=0)
    for _ in range(4):
        gradients(model, X)
    assert len(streams) == 4 * 2
    assert len(set(streams)) == len(streams)


def test_g14_gradients_accumulate():
    """Four quarters of a batch give the gradient of the whole."""
    model = integrations.compress_model(mlp(), "L1.1", min_bytes=0)
    plain = gradients(mlp(), X)
    for part in X.split(12):
        (model(part).square().mean() / 4).backward()
    assert relative_error(plain, {name: p.grad for name, p in model.named_parameters()}) < EIGHT_BITS
    assert integrations.compression(model).step == 4


def test_g15_the_library_never_ends_the_process():
    for file in Path(integrations.__file__).parent.rglob("*.py"):
        if file.name in ("cli.py", "command_line.py"):  # a command is the process
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            called = node.func if isinstance(node, ast.Call) else None
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            assert name not in ("exit", "_exit", "quit", "abort"), f"{file}:{node.lineno}"


def test_g16_settings_do_something_or_do_not_exist():
    for name in ("warmup_iter", "momentum", "max_bit", "debug"):
        with pytest.raises(AttributeError, match="settings of config are"):
            setattr(gact.config, name, 1)
    with pytest.raises(ValueError, match="bits must be from 1 to 8, got 16"):
        gact.config.bit = 16


@pytest.mark.parametrize("level", ["L1", "L2"])
def test_g17_iterate_runs_the_step(level):
    controller, calls = controlled(mlp(), level), []
    controller.iterate(lambda: calls.append(controller.model(X).sum().backward()))
    assert calls == [None]
    assert all(p.grad is not None for p in controller.model.parameters())


@pytest.mark.parametrize("level", ["L1", "L2"])
def test_g18_no_optimizer_steps_that_nobody_asked_for(level):
    """A closure that steps stepped three times more for each tensor, at every adaptation."""
    gact.set_adapt_interval(1)
    controller = controlled(mlp(), level)
    optimizer, steps = torch.optim.SGD(controller.model.parameters(), 0.1), []
    optimizer.register_step_post_hook(lambda *args: steps.append(1))

    def backprop():
        optimizer.zero_grad()
        controller.model(X).square().mean().backward()
        optimizer.step()

    for _ in range(5):
        controller.iterate(backprop)
    assert len(steps) == 5


def test_g21_checkpoints_bring_back_what_they_need(lane):
    """What backward recomputes is stored after all that the forward stored: the order to fetch in is not the names'."""

    class Partly(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.middle, self.last = mlp(depth=2), mlp(depth=2), mlp(depth=2)

        def forward(self, x):
            return self.last(checkpoint(self.middle, self.first(x), use_reentrant=False))

    model = Partly()
    plain = gradients(copy.deepcopy(model), X)
    assert_same(plain, gradients(integrations.compress_model(model, "swap"), X))
