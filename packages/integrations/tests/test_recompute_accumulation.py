"""Steps that find gradients there and add to them have a plan of their own, within the same budget."""

import re
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

import integrations
from actcore import simulate
from integrations import checkpoint, compress_model
from integrations.checkpoint import Plan
from integrations.planner.problem import training_step

from .nets import assert_same, normal
from .recompute_reference import LiveBytes


def deep(width=64, depth=24):
    """More gradients than activations, so that the first step's peak comes when all of them are there."""
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.Tanh()))).train()


def counted(model, x):
    with LiveBytes() as live:
        model(x).sum(dtype=torch.float64).backward()
    return live.peak


def loss(out):
    return out.sum(dtype=torch.float64)


X = normal(64, 64)


def test_the_peak_of_both_states_is_the_one_that_was_foretold():
    model = deep()
    plan = checkpoint.plan(model, X, budget=1.0, loss=loss, holds_outputs=False)
    gradients = sum(parameter.numel() * 4 for parameter in model.parameters())
    assert counted(model, X) - gradients == plan.peak
    assert counted(model, X) == plan.accumulating.plain_peak
    assert plan.accumulating.plain_peak > plan.plain_peak


def test_a_plan_is_followed_in_the_state_that_the_gradients_show():
    model, plain = deep(), deep()
    plan = checkpoint.plan(model, X, loss=loss, holds_outputs=False)
    assert plan.accumulating.peak < 0.5 * plan.accumulating.plain_peak
    checkpoint.apply(model, plan)
    counted(model, X)
    assert checkpoint.plan_of(model) is plan
    assert counted(model, X) == plan.accumulating.peak  # nothing but tensors is counted, and their sizes are exact
    assert checkpoint.plan_of(model).graph.accumulates
    assert "in steps that accumulate gradients" in str(checkpoint.plan_of(model))
    for _ in range(2):
        plain(X).sum(dtype=torch.float64).backward()
    assert_same(*({name: one.grad for name, one in net.named_parameters()} for net in (plain, model)))
    model.zero_grad()
    counted(model, X)
    assert checkpoint.plan_of(model) is plan


@pytest.mark.parametrize("share", [0.4, 0.7])
def test_a_budget_is_kept_in_both_states(share):
    model = deep()
    plan = checkpoint.plan(model, X, loss=loss, holds_outputs=False)
    allowed = int(share * plan.accumulating.plain_peak)
    found = plan.within(allowed)
    assert max(found.peak, found.accumulating.peak) <= allowed
    checkpoint.apply(model, found)
    counted(model, X)
    assert counted(model, X) <= allowed


def test_a_plan_for_another_graph_does_not_share_what_was_found_for_its_own():
    plan = checkpoint.plan(deep(), X)
    found = plan.accumulating
    assert plan.within(1.0).accumulating.front is found.front  # which is looked for once
    other = replace(plan, graph=checkpoint.plan(deep(), normal(8, 64)).graph)
    assert other.accumulating.graph.inputs.shapes == ((8, 64),)


def test_a_budget_that_one_state_cannot_keep_raises_once_a_step_has_accumulated():
    """A first step that finds gradients may still clear them before backward."""
    model = deep()
    plan = checkpoint.plan(model, X, loss=loss, holds_outputs=False)
    checkpoint.apply(model, plan.within(plan.peak))
    counted(model, X)
    with pytest.warns(UserWarning, match=r"in steps that add to gradients keeps to memory=\d+: .* is used"):
        counted(model, X)
    with pytest.raises(ValueError, match=r"in steps that add to gradients keeps to memory=\d+: .*zero_grad"):
        model(X)
    model.zero_grad()
    counted(model, X)


def test_a_budget_that_one_state_cannot_keep_is_told_of_once_where_it_may_fall_back():
    model = deep()
    plan = integrations.plan(model, (X,), memory="least")
    compress_model(model, plan=plan.within(plan.peak), fallback="least")
    model(X).sum().backward()
    with pytest.warns(UserWarning, match=r"in steps that add to gradients keeps to memory=\d+: .* is used"):
        model(X).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(X).sum().backward()


def test_steps_that_clear_gradients_late_keep_a_budget_that_accumulation_cannot():
    """As in Lightning. Until this is seen twice, steps take more, and a warning says so."""
    model = deep()
    found = integrations.plan(model, (X,), memory="least")
    budget = found.clearing.peak
    assert found.within(budget).clearing.is_bounded
    assert not found.within(budget).accumulating.is_bounded
    compress_model(model, memory=budget)

    def step():
        out = model(X).sum()
        model.zero_grad()
        out.backward()

    step()
    with pytest.warns(UserWarning, match=r"in steps that add to gradients keeps to .* in this step\. If backward adds"):
        step()
    for _ in range(3):
        step()
    assert checkpoint.plan_of(model).peak <= budget


def test_a_fraction_out_of_reach_names_the_bytes_of_accumulation():
    """It blames no gradients: the peak does not count those that the step leaves."""
    with pytest.raises(ValueError, match=r"got 0\.5; steps that accumulate gradients can go from .* to ") as caught:
        checkpoint.plan(deep(), X, budget=0.5)
    told, found = str(caught.value), checkpoint.plan(deep(), X)
    enough = int(re.search(r": for those, pass memory=(\d+)\. Otherwise ", told)[1])
    assert "most of its peak" not in told
    assert enough == found.accumulating.peak == found.within(enough).accumulating.peak


def test_under_a_level():
    model = compress_model(deep(), "L1", checkpoint="optimal")
    for _ in range(2):
        model(X).sum().backward()
    followed = checkpoint.plan_of(model)
    assert followed.graph.accumulates
    assert followed.compressed
    assert followed.segments
    model.zero_grad()
    model(X).sum().backward()
    assert not checkpoint.plan_of(model).graph.accumulates


def test_a_plan_that_was_saved_knows_both_states(tmp_path):
    plan = checkpoint.plan(deep(), X, loss=loss, holds_outputs=False)
    plan.save(tmp_path / "plan")
    loaded = Plan.load(tmp_path / "plan")
    assert loaded.accumulating == plan.accumulating
    compressed = compress_model(deep(), "L1", checkpoint="optimal")
    compressed(X).sum().backward()
    followed = checkpoint.plan_of(compressed)
    assert Plan.from_json(followed.to_json()).accumulating == followed.accumulating


def test_frozen_parameters_have_no_gradients_to_wait_for():
    model = deep()
    for parameter in model[:8].parameters():
        parameter.requires_grad_(False)
    plan = checkpoint.plan(model, X, loss=loss, holds_outputs=False)
    standing = max(plan.graph.standing)
    assert standing <= plan.graph.gradients == sum(p.numel() * 4 for p in model[8:].parameters())
    checkpoint.apply(model, plan)
    counted(model, X)
    assert counted(model, X) == plan.accumulating.peak


def test_tied_weights_are_complete_when_the_last_use_has_added_to_them():
    model = deep(depth=4)
    model[6].weight = model[0].weight
    plan = checkpoint.plan(model, X, budget=1.0, loss=loss, holds_outputs=False)
    usage = simulate(training_step(plan.graph), [True] * len(plan.graph.values))
    counted(model, X)
    assert counted(model, X) == plan.accumulating.plain_peak
    assert usage.peak - plan.graph.gradients == plan.plain_peak
