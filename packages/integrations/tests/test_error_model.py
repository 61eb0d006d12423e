"""Predictions of errors by layer, corrected by measurements, and plans that keep to the bounds by them."""

import math

import pytest
import torch
from torch import nn

from integrations.api.error_control.error_model import TARGET, ErrorModel
from integrations.api.error_control.gradient_errors import OF_TENSOR, GradientErrors, TensorError, large_parameters
from integrations.api.error_control.plan_within_bounds import chosen, measured, weighed_again
from integrations.planner.bounds import Bounds
from integrations.planner.plan_with_stores import planned
from integrations.policies.levels import LEVELS

from .nets import normal

BOUNDS = Bounds(error=0.1)


def net(depth=4):
    torch.manual_seed(0)
    inner = [layer for _ in range(depth) for layer in (nn.SiLU(), nn.Linear(64, 64))]
    return nn.Sequential(nn.Linear(32, 64), *inner, nn.Linear(64, 4))


def planned_for(model, bounds=BOUNDS):
    errors = ErrorModel(model, bounds.error)
    front = planned(model, LEVELS["L0"], (normal(512, 32),), {}, bounds, **ErrorModel.weighing(model, errors))
    return chosen(front, bounds, errors), errors


def found(model, error):
    """Measured errors: the same relative one of each parameter, or one for each name."""
    errors = error if isinstance(error, dict) else dict.fromkeys(dict(model.named_parameters()), error)
    return GradientErrors({name: TensorError(one**2, 1.0) for name, one in errors.items()}, large_parameters(model))


def estimate_noise(plan):
    """The noise of all values together."""
    candidates = plan.candidates_for(plan.choice)
    return sum(candidates.option(value, store).noise for value, store in plan.choice.stores)


def test_a_plan_is_predicted_to_keep_to_the_bounds_of_the_whole_and_of_each_layer():
    plan, errors = planned_for(net())
    assert plan.choice.rounds
    assert plan.choice.error <= plan.error
    assert max(errors._predicted(plan).values()) <= (OF_TENSOR * TARGET * plan.error) ** 2
    assert errors.least_shares(plan, {}) is None


def test_no_value_takes_more_than_half_of_a_large_tensors_bound():
    plan, errors = planned_for(net())
    candidates = plan.rounded_candidates
    noise = errors._noise(plan.rounded, candidates)
    for value, store in plan.choice.stores:
        option = candidates.option(value, store)
        assert option.noise <= candidates.limits[value]
        most = noise.parts[value].max().item() * option.noise
        assert most <= (OF_TENSOR * TARGET * plan.error) ** 2 / 2 * (1 + 1e-9)
    coarser = [
        option
        for value, row in enumerate(candidates.options)
        for option in row
        if option.noise > candidates.limits[value]
    ]
    assert coarser  # some were excluded


def test_a_layer_whose_bound_would_be_broken_counts_more():
    model = net()
    plan, errors = planned_for(model)
    errors._factors = {"2": 1000.0}
    least = errors.least_shares(plan, {"4": 0.05})
    assert 0 < least["2"] <= OF_TENSOR**-2
    assert least["4"] == 0.05
    assert set(errors.least_shares(plan, {}, last=True).values()) == {OF_TENSOR**-2}
    again = chosen(weighed_again(plan, errors), BOUNDS, errors)
    assert errors.least_shares(again, {}) is None
    assert errors._predicted(again).get("2", 0.0) < errors._predicted(plan)["2"]


def test_no_plan_of_the_last_search_breaks_the_bound_of_a_layer(monkeypatch):
    """Whatever else is predicted."""
    monkeypatch.setattr("integrations.api.error_control.plan_within_bounds._MOST_SEARCHES", 1)
    model = net(12)
    plan, errors = planned_for(model)
    assert plan.choice.rounds
    for layer in ("2", "12", "24"):
        errors._factors = {layer: 30.0}
        again = chosen(weighed_again(plan, errors), BOUNDS, errors)
        assert errors.least_shares(again, {}) is None


@pytest.mark.parametrize("where", ["everywhere", "in one tensor"])
def test_an_error_above_the_bound_makes_the_plan_round_less(where):
    model = net()
    plan, errors = planned_for(model)
    wrong = dict.fromkeys(dict(model.named_parameters()), 0.01)
    wrong |= {"4.weight": 0.6} if where == "in one tensor" else dict.fromkeys(wrong, 0.3)
    before = errors.version
    errors.correct(plan, found(model, wrong))
    assert errors.version == before + 1
    # By what was measured, the error was predicted too low.
    assert errors._predicted(plan)["4"] >= wrong["4.weight"] ** 2
    assert errors._whole(plan) >= found(model, wrong).relative ** 2
    again = chosen(weighed_again(plan, errors), BOUNDS, errors)
    assert errors._predicted(again).get("4", 0.0) < errors._predicted(plan)["4"]
    assert again.peak >= plan.peak
    assert errors._predicted(again).get("4", 0.0) <= (OF_TENSOR * TARGET * plan.error) ** 2


def test_an_error_below_the_prediction_corrects_nothing():
    model = net()
    plan, errors = planned_for(model)
    before = errors._predicted(plan)
    errors.correct(plan, found(model, 1e-4))
    assert errors._predicted(plan) == before


def test_what_was_not_measured_is_corrected_as_the_whole():
    """As biases, which belong to layers whose weights are frozen."""
    model = net()
    plan, errors = planned_for(model)
    errors.correct(plan, found(model, {"9.bias": 0.5}))
    assert errors._whole(plan) >= 0.25


def test_zero_gradients_teach_nothing():
    model = net()
    plan, errors = planned_for(model)
    before = errors._predicted(plan)
    nothing = GradientErrors(
        {name: TensorError(0.0, 0.0) for name, _ in model.named_parameters()}, large_parameters(model)
    )
    errors.correct(plan, nothing)
    assert errors._predicted(plan) == before


def test_a_plan_is_measured_until_it_is_within_the_bound():
    model, asked = net(), []
    plan, errors = planned_for(model)

    def measure(one):
        asked.append(one)
        return found(model, 0.2 if len(asked) == 1 else 0.05)

    kept = measured(plan, BOUNDS, errors, measure)
    assert kept.measured == pytest.approx(0.05)
    assert len(asked) == 2
    assert estimate_noise(asked[1]) < estimate_noise(asked[0])
    rounds_nothing = measured(plan, BOUNDS, errors, lambda one: found(model, 0.2))
    assert not rounds_nothing.choice.rounds


def test_a_plan_that_cannot_be_measured_says_why():
    model = net()
    plan, errors = planned_for(model)

    def fail(one):
        raise RuntimeError("no room")

    kept = measured(plan, BOUNDS, errors, fail)
    assert (kept.choice, kept.measured, kept.unmeasured) == (plan.choice, None, "RuntimeError: no room")


def test_what_was_learnt_is_in_the_state():
    model = net()
    plan, errors = planned_for(model)
    errors.correct(plan, found(model, 0.3))
    other = ErrorModel(model, 0.1)
    other.load(errors.state())
    assert other.state() == errors.state()
    assert other.weigh(plan.rounded, plan.rounded_candidates) == errors.weigh(plan.rounded, plan.rounded_candidates)


@pytest.mark.parametrize(
    "change", [{"factors": {"2": math.inf}}, {"shares": {"2": -1.0}}, {"rest": "1"}, {"version": 1.5}, {"more": 1}]
)
def test_a_damaged_state_is_refused(change):
    errors = ErrorModel(net(), 0.1)
    with pytest.raises((TypeError, ValueError), match=next(iter(change)) if "more" not in change else "state_dict"):
        errors.load({**errors.state(), **change})


def test_saved_plans_have_what_corrections_take():
    model = net()
    plan, errors = planned_for(model)
    loaded = type(plan).from_json(plan.to_json())
    assert loaded.rounded_candidates == plan.rounded_candidates
    errors.correct(plan, found(model, 0.3))
    ours, theirs = (chosen(weighed_again(one, errors), BOUNDS, errors) for one in (plan, loaded))
    assert ours.choice == theirs.choice
