"""Errors are measured while the model learns, at fixed steps, beside the training."""

import copy
import pickle
import warnings
import weakref
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations
from integrations import compress_model, compression
from integrations.api.error_control.gradient_errors import GradientErrors, TensorError, large_parameters
from integrations.api.handle import recorded_step, remeasuring
from integrations.api.handle.remeasuring import EARLY, EVERY, Measured
from integrations.capture.costs.rates import constant

from .nets import normal
from .rounding_plans import blocks


@pytest.fixture(autouse=True)
def constant_rates(monkeypatch):
    """By these a small net has several plans that round."""
    monkeypatch.setattr("integrations.planner.plan_with_stores.calibrated", constant)


def net():
    torch.manual_seed(0)
    inner = [layer for _ in range(3) for layer in (nn.SiLU(), nn.Linear(64, 64))]
    return nn.Sequential(nn.Linear(32, 64), *inner, nn.Linear(64, 1))


def train(model, steps, first=0, learn=True, width=32):
    """Train, with other data in each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 if learn else 0.0)
    for step in range(first, first + steps):
        optimizer.zero_grad()
        model(normal(512, width, seed=step)).square().mean().backward()
        optimizer.step()
    return compression(model)


class Measurements:
    """Takes the place of ``measured_errors``: each call returns the next of some errors, or the last one."""

    def __init__(self, monkeypatch, *errors):
        self.errors, self.plans, self.starts = list(errors), [], []
        monkeypatch.setattr(recorded_step, "measured_errors", self)

    def __call__(self, model, args, kwargs, plan, loss=None, starts=None, changes_inputs=True):
        self.plans.append(plan)
        self.starts.append(starts)
        error = self.errors.pop(0) if len(self.errors) > 1 else self.errors[0]
        if isinstance(error, Exception):
            raise error
        names = dict(model.named_parameters())
        return GradientErrors({name: TensorError(error**2, 1.0) for name in names}, large_parameters(model))


def test_the_first_steps_and_then_every_500th_are_measured(monkeypatch):
    monkeypatch.setattr(remeasuring, "EARLY", (0, 3, 5))
    monkeypatch.setattr(remeasuring, "EVERY", 8)
    model, found, seen = compress_model(net(), memory="least", error=0.1), Measurements(monkeypatch, 0.08), []
    for step in range(26):
        handle = train(model, 1, step)
        seen.append(len(found.plans))
    # Each is measured before the forward of the next step.
    measured = [step for step in range(1, 26) if seen[step] > seen[step - 1]]
    assert measured == [1, 4, 6, 9, 17, 25]
    assert handle.measured.step == 24
    assert (EARLY, EVERY) == ((0, 10, 50, 200), 500)


def test_backward_of_a_measured_step_starts_from_the_losses_gradients(monkeypatch):
    model, found = compress_model(net(), memory="least", error=0.1), Measurements(monkeypatch, 0.08)
    x = normal(512, 32)
    output = model(x)
    output.square().mean().backward()
    model(x).sum().backward()
    [[start]] = found.starts
    assert torch.equal(start, (2 * output / output.numel()).detach())


def test_a_measured_error_is_that_of_the_gradients():
    """Most of it is in the 64 elements of the last weight: squared, that of one draw has a relative deviation of
    sqrt(2 / 64) = 0.18, and a sketch one of sqrt(2 / 256) = 0.09. Four times both of the root are 0.4."""
    model = net()
    plain = copy.deepcopy(model)
    handle = train(compress_model(model, memory="least", error=0.1), 2, learn=False)
    x, errors, norms = normal(512, 32, seed=0), 0.0, 0.0
    plain(x).square().mean().backward()
    for _ in range(8):
        model.zero_grad()
        model(x).square().mean().backward()
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            errors += (one.grad - other.grad).square().sum().item()
            norms += other.grad.square().sum().item()
    assert handle.measured.step == 0
    assert handle.measured.relative == pytest.approx((errors / norms) ** 0.5, rel=0.4)


def test_measuring_changes_nothing_of_the_training(monkeypatch):
    """Statistics, dropout and counts included."""
    ours, others = blocks(), blocks()
    for model in (ours, others):
        compress_model(model, memory="least", error=0.1)
    torch.manual_seed(1)
    train(ours, 3, width=64)
    monkeypatch.setattr(remeasuring.Remeasuring, "waits", lambda *given: False)
    torch.manual_seed(1)
    train(others, 3, width=64)
    assert compression(ours).measured.step == 0
    assert compression(others).measured is None
    assert ours[0].calls == others[0].calls
    for one, other in zip(ours.state_dict().values(), others.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_the_plan_that_a_step_has_followed_is_measured(monkeypatch):
    """In an accumulation, and where gradients are cleared between forward and backward, if it fits beside them."""
    monkeypatch.setattr(remeasuring, "EARLY", (0, 3))
    found = Measurements(monkeypatch, 0.08)
    for late in (False, True):
        model = compress_model(net(), memory="least", error=0.1)
        followed = []
        for step in range(5):
            loss = model(normal(512, 32, seed=step)).square().mean()
            followed.append(compression(model).plan)
            if late:
                model.zero_grad()
            loss.backward()
        ours = found.plans[-2:]
        assert ours[1].choice == followed[3].choice
        assert ours[0].graph.accumulates or ours[0].choice == followed[0].choice


def test_shorter_inputs_that_follow_a_longer_ones_plan_are_measured(monkeypatch):
    monkeypatch.setattr(remeasuring, "EARLY", (0, 2))
    model = compress_model(net(), memory="least", error=0.1)
    for rows in (512, 300, 200, 400):
        model.zero_grad()
        model(normal(rows, 32)).square().mean().backward()
    assert compression(model).measured.step == 2


class Changing(nn.Module):
    """A net whose forward changes what it is given."""

    def __init__(self, kind):
        super().__init__()
        self.inner, self.kind = net(), kind

    def forward(self, x, box=None):
        if self.kind == "in place":
            x.mul_(0.5)
        return self.inner(x if box is None else box.x)


@pytest.mark.parametrize(
    ("kind", "why"),
    [("in place", "changes its inputs in place"), ("object", "is a SimpleNamespace"), ("later", "were overwritten")],
)
def test_an_error_that_cannot_be_measured_raises_or_rests_on_estimates_if_asked_for(kind, why):
    def steps(fallback):
        model = compress_model(Changing(kind), memory="least", error=0.1, fallback=fallback)
        static = normal(512, 32)
        for step in range(20):
            model.zero_grad()
            static.copy_(normal(512, 32, seed=step))
            box = SimpleNamespace(x=static) if kind == "object" else None
            model(static, box).square().mean().backward()
        return compression(model)

    message = f"error=0.1 of Changing could not be measured in 4 steps: .*{why}"
    with pytest.raises(RuntimeError, match=message):
        steps("error")
    with pytest.warns(UserWarning, match=message) as told:
        handle = steps("least")
    assert len([one for one in told if "could not be measured" in str(one.message)]) == 1
    assert handle.measured is None
    assert why in handle.report().recomputed


def test_steps_that_say_nothing_are_no_reason_to_stop():
    """As the first ones of a run whose loss scale is too large. They are tried again ever later, and a warning says so
    once."""
    model = compress_model(net(), memory="least", error=0.1)

    def overflow():
        for step in range(12):
            model.zero_grad()
            (model(normal(512, 32, seed=step)).sum() * float("inf")).backward()

    with pytest.warns(UserWarning, match="could not be measured in 4 steps: its gradient was not finite") as told:
        overflow()
    assert len([one for one in told if "could not be measured" in str(one.message)]) == 1
    assert compression(model).measured is None
    assert train(model, 10, 12).measured is not None


def test_after_the_error_of_what_cannot_be_measured_steps_are_measured_again():
    """Once what prevented it is gone."""
    model = compress_model(Changing("object"), memory="least", error=0.1)
    box = SimpleNamespace(x=normal(512, 32))

    def steps(count, *given):
        for _ in range(count):
            model.zero_grad()
            model(box.x, *given).square().mean().backward()

    with pytest.raises(RuntimeError, match="is a SimpleNamespace"):
        steps(20, box)
    steps(4)
    assert compression(model).measured is not None


def test_a_state_that_is_taken_in_eval_mode_or_outside_of_autocast(monkeypatch):
    model = compress_model(net(), memory="least", error=0.1)
    with torch.autocast("cpu", torch.bfloat16):
        model(normal(512, 32)).square().mean().backward()
    model.eval()
    compression(model).state_dict()
    assert compression(model).measured is None
    model.train()
    compression(model).state_dict()
    assert compression(model).measured.step == 0


@pytest.mark.parametrize(("error", "changes"), [(0.079, False), (0.081, True)])
def test_an_error_above_four_fifths_of_the_bound_makes_the_plan_round_less_without_a_warning(
    monkeypatch, error, changes
):
    Measurements(monkeypatch, error)
    model = compress_model(net(), memory="least", error=0.1)
    train(model, 1)
    before, none = compression(model).plan, compression(model).measured
    assert none is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        after = train(model, 1, 1)
    assert (after.plan.choice != before.choice) == changes
    assert after.measured.step == 0


def test_an_error_above_the_bound_makes_the_next_step_round_less_and_says_so_once(monkeypatch):
    found = Measurements(monkeypatch, 0.2, 0.15, 0.05)
    model = compress_model(net(), memory="least", error=0.1)
    train(model, 1)
    handle = compression(model)
    before = handle.plan
    with pytest.warns(UserWarning, match=r"exceeds error=0\.1: 0\.2 \(at most 0\.1\), 0\.2 of ") as told:
        train(model, 1, 1)
    assert len(told) == 1
    after = handle.plan
    assert after.choice != before.choice
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, 8, 2)
    # The steps after a change are measured, too, until one is within the bound.
    assert [plan.choice for plan in found.plans[:2]] == [before.choice, after.choice]
    assert len(found.plans) == 3
    assert handle.measured.step == 2
    assert "0.05 (at most 0.1), 0.05 of 7.weight (at most 0.3), measured in step 2" in handle.report().recomputed


@pytest.mark.parametrize(
    ("error", "measured"),
    [(0.04, [0, 2, 16]), (0.06, [0, 2, 3, 4, 6, 9, 13, 16]), (0.08, [0, 2, *range(3, 9), 10, 12, 15, 16])],
)
def test_an_error_near_the_bound_is_measured_again_sooner(monkeypatch, error, measured):
    """When it would be 0.09 if it grew as the number of steps does, but not before a quarter more of them are over."""
    monkeypatch.setattr(remeasuring, "EARLY", (0, 2, 16))
    monkeypatch.setattr(remeasuring, "_SETTLED", 2)
    found = Measurements(monkeypatch, error)
    train(compress_model(net(), memory="least", error=0.1), 18)
    assert len(found.plans) == len(measured)


def test_an_error_that_no_plan_within_the_memory_keeps_is_raised_in_each_forward(monkeypatch):
    Measurements(monkeypatch, 0.9)
    model = net()
    least = integrations.plan(model, (normal(512, 32),), error=0.1)
    exact = integrations.plan(model, (normal(512, 32),))
    assert least.peak < exact.peak
    compress_model(model, memory=f"{least.peak}B", error=0.1)
    train(model, 1)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"0\.9 .*measured in step 0.*needs more memory than the budget") as raised:
            train(model, 1, 1)
        assert "fallback='least'" in str(raised.value)


def test_a_fallback_goes_on_with_more_memory(monkeypatch):
    Measurements(monkeypatch, 0.9, 0.05)
    model = net()
    least = integrations.plan(model, (normal(512, 32),), error=0.1)
    compress_model(model, memory=f"{least.peak}B", error=0.1, fallback="least")
    train(model, 1)
    with pytest.warns(UserWarning, match="fallback='least'"):
        train(model, 1, 1)
    assert compression(model).plan.peak > least.peak


@pytest.mark.parametrize("why", ["raised", "not finite", "no backward"])
def test_what_was_not_measured_is_tried_again_later(monkeypatch, why):
    model = compress_model(net(), memory="least", error=0.1)
    found = Measurements(monkeypatch, *([RuntimeError("no room")] if why == "raised" else []), 0.08)
    output = model(normal(512, 32))
    if why != "no backward":
        (output.sum() * (float("inf") if why == "not finite" else 1.0)).backward()
    model.zero_grad()
    handle = train(model, 1, 1)
    assert handle.measured is None
    words = {"raised": "RuntimeError: no room", "not finite": "its gradient was not finite"}
    assert f"not measured yet ({words.get(why, 'its backward did not run')})" in handle.report().recomputed
    handle = train(model, 3, 2)
    assert handle.measured.step == 2
    assert found.plans


def test_a_resumed_run_measures_and_rounds_as_the_uninterrupted_one(monkeypatch):
    """The state is taken when a step is over that is measured before the next one."""
    monkeypatch.setattr(remeasuring, "EARLY", (0, 2))
    monkeypatch.setattr(remeasuring, "_TIGHT", 0.0)  # each measurement changes the plan

    def steps(model, first, count):
        train(model, count, first)
        return [parameter.detach().clone() for parameter in model.parameters()]

    whole = compress_model(net(), memory="least", error=0.1)
    expected = steps(whole, 0, 6)
    for at in (1, 2, 3, 4):
        model = compress_model(net(), memory="least", error=0.1)
        steps(model, 0, at)
        state = pickle.loads(pickle.dumps((model.state_dict(), compression(model).state_dict())))
        resumed = net()
        resumed.load_state_dict(state[0])
        compress_model(resumed, memory="least", error=0.1)
        compression(resumed).load_state_dict(state[1])
        found = steps(resumed, at, 6 - at)
        assert compression(resumed).measured == compression(whole).measured
        assert all(map(torch.equal, found, expected)), at


def test_under_a_gradient_scaler_and_autocast():
    model = compress_model(net(), memory="least", error=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.mse_loss(model(normal(512, 32, seed=step)), torch.zeros(512, 1))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    handle = compression(model)
    assert handle.measured.step == 0
    assert 0 < handle.measured.relative <= 0.1


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_that_is_made_before_a_measurement_has_none_of_its_tensors(copied):
    model = compress_model(net(), memory="least", error=0.1)
    train(model, 1)
    other = copied(model)
    assert compression(other)._plan_manager.measuring._recorded is None
    for one in (model, other):
        train(one, 4, 1)
    assert compression(model).measured.step == 0
    assert compression(other).measured.step >= 1


def test_forwards_of_a_closure_are_no_steps(monkeypatch):
    found = Measurements(monkeypatch, 0.08)
    model = compress_model(net(), memory="least", error=0.1)
    train(model, 1)
    compression(model).gradient_error(lambda: model(normal(512, 32)).square().mean().backward())
    assert found.plans == []
    train(model, 1, 1)
    assert len(found.plans) == 1


def test_what_a_model_returns_is_held_no_longer_than_its_backward():
    model = compress_model(net(), memory="least", error=0.1)
    output = model(normal(512, 32))
    held = weakref.ref(output)
    output.square().mean().backward()
    del output
    assert held() is None


def test_a_compiled_model_is_measured():
    """As eager code, which the measurement runs."""
    model = compress_model(net(), memory="least", error=0.1)
    compiled = torch.compile(model, backend="aot_eager")
    for step in range(2):
        model.zero_grad()
        compiled(normal(512, 32, seed=step)).square().mean().backward()
    handle = compression(model)
    assert handle.measured.step == 0
    assert 0 < handle.measured.relative <= 0.1


def test_measurements_in_words():
    """A large parameter tensor may have three times the error of the whole gradient."""
    assert Measured(3, 0.0512).beside(0.1) == "0.051 (at most 0.1), measured in step 3"
    told = "0.05 (at most 0.1), 0.14 of 0.weight (at most 0.3), measured in step 3"
    assert Measured(3, 0.05, 0.14, "0.weight").beside(0.1) == told
