"""``compress_model(checkpoint=...)``: what it may be asked, what it refuses, and plans beside levels in parts."""

import pytest
import torch
from torch import nn

import integrations
from integrations import checkpoint

from .nets import Net, gradients, mlp, normal
from .recompute_levels import compressed, deep, deep_net, report


def test_bad_arguments():
    model, args = deep()
    for asked, error, message in (
        (True, TypeError, "checkpoint must be 'optimal', a Plan"),
        (None.__class__, TypeError, "checkpoint must be 'optimal', a Plan"),
        ("most", ValueError, "checkpoint must be 'optimal', a Plan or a valid budget"),
        (1.5, ValueError, "checkpoint must be 'optimal', a Plan or a valid budget"),
        (checkpoint.plan(mlp(width=8).train(), normal(4, 8)), ValueError, "the plan must be one of this model"),
    ):
        with pytest.raises(error, match=message):
            compressed(model, checkpoint=asked)
        assert "forward" not in model.__dict__
    compressed(model, checkpoint=1000)
    with pytest.raises(ValueError, match=r"a budget of at least \d+ bytes"):
        model(*args)
    assert integrations.compression(model).step == 0
    with (
        pytest.raises(ValueError, match="checkpoint must be left out of a block of integrations"),
        integrations.compress(deep_net(), "L1", checkpoint="optimal"),
    ):
        pass


def test_a_budget_that_cannot_be_met_says_what_can():
    model, args = deep()
    compressed(model, checkpoint=1000)
    with pytest.raises(ValueError, match=r"at this level, got 1000; take a smaller batch, or call .*restore") as raised:
        model(*args)
    words = str(raised.value)
    for budget in (
        int(words.split("at least ")[1].split()[0]),
        float(words.split(", ")[1].split(" of the plain step's")[0]),
    ):
        integrations.restore_model(model)
        gradients(compressed(model, checkpoint=budget), *args)
    # The plan's own fractions, and its own error, are those of compress_model.
    plan = checkpoint.plan_of(model)
    assert plan.within(budget) == plan
    with pytest.raises(ValueError, match=r"checkpoint must be a budget of at least \d+ bytes"):
        plan.within("1KiB")
    assert checkpoint.Plan.from_json(plan.to_json()) == plan


def test_a_budget_is_met_in_the_least_time():
    model, args = deep()
    gradients(compressed(model), *args)
    least = integrations.compression(model)._plan_manager.plan
    integrations.restore_model(model)
    budget = (least.peak + least.plain_peak) // 2
    gradients(compressed(model, checkpoint=budget), *args)
    plan = integrations.compression(model)._plan_manager.plan
    assert plan.peak <= budget
    assert 0 < plan.seconds < least.seconds


def test_two_that_see_to_what_is_kept_are_refused():
    model, args = deep()
    plan = checkpoint.plan(model, args)
    compressed(model, checkpoint=None)
    with pytest.raises(ValueError, match="must not be compressed or follow a plan already, but it is compressed: call"):
        checkpoint.apply(model, plan)
    integrations.restore_model(model)
    compressed(model)
    with pytest.raises(ValueError, match=r"has a plan already; call integrations.checkpoint.restore_model\(model\)"):
        checkpoint.apply(model, plan)
    with pytest.raises(ValueError, match="compressed already"):
        compressed(model)
    outer = nn.Sequential(model, nn.Linear(64, 64)).train()
    with pytest.raises(ValueError, match="but its module '0' is compressed: call"):
        compressed(outer)
    integrations.restore_model(model)
    checkpoint.apply(model, plan)
    for options in ({"checkpoint": None}, {}):
        with pytest.raises(ValueError, match="is compressed already"):
            compressed(model, **options)
    checkpoint.restore_model(model)


def test_a_part_with_a_plan_in_a_model_without():
    model, args = deep()
    compressed(model)
    outer = integrations.compress_model(nn.Sequential(model, nn.Linear(64, 64)).train(), "L1", min_bytes=0)
    outer(*args).sum().backward()
    assert report(model).recomputed_bytes > 0
    assert report(outer).rows


def test_what_is_compressed_inside_of_a_plan():
    """No module of the model, so that nobody could see it before."""
    inner, args = deep()
    model = Net(lambda model, x: inner(x) * model.scale, scale=normal(64)).train()
    checkpoint.apply(model, checkpoint.plan(model, args))
    integrations.compress_model(inner, "L1")
    with pytest.raises(RuntimeError, match="must not run inside of a forward that follows a plan"):
        model(*args)


def test_a_plan_inside_of_a_block():
    """Which is of another model, and sees nothing of what the plan keeps."""
    model, args = deep()
    plain = gradients(model, *args)
    model.zero_grad()
    checkpoint.apply(model, checkpoint.plan(model, args))
    other = mlp(width=64).train()
    with integrations.compress(other, "L1") as block:
        output = model(*args)
        other(*args).sum().backward()
    output.square().mean().backward()  # outside: what a block computes by itself is its own
    assert all(torch.equal(plain[name], parameter.grad) for name, parameter in model.named_parameters())
    assert report(model).recomputed_bytes > 0
    assert {row.module for row in block.report().rows} <= {name for name, _ in other.named_modules()}
