"""The error of a plan: weights of values before and after a measurement, and a step aside."""

import copy
import itertools
import random
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations
from actcore import GroupAffine
from integrations._adaptive.one_step import Difference, OneStep, Unmeasured
from integrations._adaptive.weights import measured_weights, noise_of, usual_weights
from integrations._measuring import plan_error
from integrations._measuring.plan_error import measured_error
from integrations._measuring.sensitivities import sensitivities
from integrations._measuring.within_error import within_error
from integrations._planning.bounds import Bounds
from integrations._planning.front import planned

from .nets import gradients, mlp, normal
from .rounding_plans import BASE, all_stored, blocks


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_the_noise_of_rounding_is_that_of_normally_distributed_elements(bits):
    x = normal(1 << 18)
    codec = GroupAffine(bits, 256)
    error = codec.decompress(codec.compress(x, seed=0, stream=0)) - x
    # A group's squared range has a mean of 31.9, for 5.6 squared, and over 1024 groups that varies by less than 1 %.
    # At two bits, elements between the codes are not spread evenly.
    assert error.square().mean() / x.square().mean() == pytest.approx(noise_of(bits), rel=0.1)


def test_layers_share_the_gradient_and_what_is_below_a_node_makes_its_weight():
    found = []

    def weights(graph, saves):
        found.append((graph, list(saves)))
        return usual_weights(graph, saves)

    planned(mlp(), BASE, (normal(32, 64),), {}, Bounds(error=0.1), weights=weights)
    graph, saves = found[-1]
    layers = [save for save in saves if save.of_layer]
    # The input of the first layer is the model's, and no value; ReLUs' results are both a sign and an input.
    assert [save.identity.module for save in layers] == ["2", "4"]
    assert sum(usual_weights(graph, saves)) == pytest.approx(1)


class Prompted(nn.Module):
    """With all that trains in front of the first operator."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.layers = mlp().requires_grad_(False)
        self.embedding = nn.Embedding(256, 64) if kind == "embedding" else None
        self.prompt = nn.Parameter(0.1 * torch.randn(256, 64)) if kind == "prompt" else None
        self.layers[0].requires_grad_(kind == "first")

    def forward(self, x):
        if self.embedding is not None:
            return F.gelu(self.layers(F.gelu(self.embedding.weight)))
        return F.gelu(self.layers(x if self.prompt is None else F.gelu(x + self.prompt)))


@pytest.mark.parametrize("kind", ["first", "prompt", "embedding"])
def test_what_trains_without_a_value_as_its_input_has_an_error_that_is_bounded(kind):
    model, x = Prompted(kind), normal(256, 64)
    plan = integrations.plan(model, (x,), error=0.01, loss=lambda output: output.square().mean(), stores=("bits",))
    assert sum(plan.rounded_menus.weights) > 0
    assert plan.measured is not None or not plan.choice.rounds
    assert measured_error(model, (x,), {}, plan) <= 0.01 * 1.2  # another draw of the rounding


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_exact_gradients_wait_in_bfloat16_where_there_is_no_room(dtype, monkeypatch):
    """Half a unit in the last of its 8 digits is 2 ** -9 of an element: so much of the gradient, and of the difference
    from it, the norms are off by at most."""
    model, x = mlp().to(dtype), normal(256, 64).to(dtype)
    plan = integrations.plan(model, (x,), error=0.1, memory=0.95, stores=("bits",))
    assert plan.choice.rounds
    found = []
    for room in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr(plan_error, "_has_room_for_all", lambda *_, room=room: room)
            found.append(measured_error(model, (x,), {}, plan))
    assert found[0] > 0
    if dtype is torch.bfloat16:
        assert found[0] == found[1]
    else:
        assert 0 < abs(found[0] - found[1]) <= 2**-9 * (1 + 2 * found[0])
    with pytest.raises(Unmeasured, match="more memory than the plain step"):
        measured_error(model, (x,), {}, replace(plan, choice=replace(plan.choice, peak=plan.plain_peak)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.complex64])
def test_a_gradient_that_comes_in_parts_waits_as_one(dtype):
    parts = [normal(64, seed=seed).to(dtype) for seed in (1, 2)]
    into = [None, None]
    for part in parts:
        plan_error._take_rounded(into, 1, part)
    waits = torch.bfloat16 if dtype is torch.float64 else dtype
    assert into[0] is None
    assert torch.equal(into[1], (parts[0].to(waits) + parts[1]).to(waits))
    assert torch.equal(parts[0], normal(64, seed=1).to(dtype))


def test_a_value_of_which_a_step_told_nothing_keeps_its_weight_by_the_rules():
    """As behind an adapter that starts at zero."""
    model, x, seen = mlp(), normal(32, 64), []

    def weights(graph, saves):
        seen.append((graph, saves))
        return usual_weights(graph, saves)

    planned(model, BASE, (x,), {}, Bounds(error=0.1), weights=weights)
    measurement = sensitivities(model, (x,), {})
    nothing = [replace(one, costs=(0.0,) * len(one.costs)) for one in measurement.tensors]
    silent = replace(measurement, tensors=tuple(nothing[:1]))
    graph, saves = seen[0]
    usual, found = usual_weights(graph, saves), measured_weights(graph, saves, silent)
    # Drawn gradients of the output leave half of the bound's square to the loss that is not known.
    assert found == pytest.approx([weight / 0.7**2 for weight in usual])


def test_a_step_aside_makes_a_steps_gradients_and_leaves_everything_as_it_was():
    model, x = blocks(), normal(32, 64)
    plain = copy.deepcopy(model)
    torch.manual_seed(1)
    plain(x).square().mean().backward()
    model(x).sum().backward()
    called = []
    next(model.parameters()).register_post_accumulate_grad_hook(called.append)
    before = copy.deepcopy(model.state_dict()), [parameter.grad.clone() for parameter in model.parameters()]
    torch.manual_seed(1)
    random.seed(1)
    states = torch.get_rng_state(), random.getstate(), model[0].calls
    found = OneStep(model, (x,), {}, lambda output: output.square().mean()).gradients()
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), model[0].calls, called) == (states[1], states[2], [])
    assert all(map(torch.equal, before[0].values(), model.state_dict().values()))
    assert all(torch.equal(one, parameter.grad) for one, parameter in zip(before[1], model.parameters(), strict=True))
    assert all(torch.equal(one, other.grad) for one, other in zip(found, plain.parameters(), strict=True))


def test_under_autocast_backward_is_outside_of_it_as_in_training(monkeypatch):
    model, x, backward, seen = blocks(1), normal(32, 64), torch.autograd.backward, []

    def watched(*given):
        seen.append(torch.is_autocast_enabled("cpu"))
        backward(*given)

    monkeypatch.setattr(torch.autograd, "backward", watched)
    with torch.autocast("cpu", torch.bfloat16):
        OneStep(model, (x,)).gradients()
        assert torch.is_autocast_enabled("cpu")
    assert seen == [False]


def test_without_a_loss_backward_starts_from_the_same_numbers_each_time():
    model, x = blocks(1), normal(32, 64)
    step = OneStep(model, (x,))
    difference = Difference(step.gradients())
    assert not any(gradient is not None for gradient in step.gradients(take=difference.take))
    assert difference.relative == 0


def test_the_difference_of_gradients_that_come_in_parts():
    difference = Difference([torch.tensor([3.0, 4.0]), None, torch.zeros(2)])
    for place, found in ((0, [1.0, 4.0]), (1, [1.0, 0.0]), (0, [2.0, 2.0])):
        difference.take(place, torch.tensor(found))
    # (3, 4) - (1, 4) - (2, 2) = (0, -2), and (1, 0) where there was nothing, over (3, 4).
    assert difference.relative == pytest.approx(5**0.5 / 5)


def peak_of(call):
    """The most bytes that are allocated at once on a CPU."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as watched:
        call()
    events = sorted(watched.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    return max(itertools.accumulate(event.nbytes() for event in events if event.name() == "[memory]"))


def test_steps_aside_take_no_more_than_the_plain_step():
    """Or the plan says why it was not measured."""
    model, x = mlp(256, 12), normal(1024, 256)
    plan = planned(model, BASE, (x,), {}, Bounds(error=0.1)).within(0.7)
    step = OneStep(model, (x,))
    plain = peak_of(step.gradients)
    assert peak_of(lambda: measured_error(model, (x,), {}, plan)) <= plain
    assert peak_of(lambda: sensitivities(model, (x,), {})) <= plain
    small = planned(model, BASE, (x[:8],), {}, Bounds(error=0.1))
    with pytest.raises(Unmeasured, match="more memory than the plain step"):
        measured_error(model, (x[:8],), {}, all_stored(small, 4))


def test_a_plan_that_rounds_nothing_has_no_error():
    """Bit for bit, dropout and statistics included."""
    model, x = blocks(), normal(1024, 64)
    plan = integrations.checkpoint.plan(model, (x,))
    assert plan.segments
    assert measured_error(model, (x,), {}, plan, lambda output: output.square().mean()) == 0
    plan = planned(model, BASE, (x,), {})
    assert measured_error(model, (x,), {}, plan, lambda output: output.square().mean()) == 0


def test_the_measured_error_is_that_of_the_training_step():
    model, x = blocks(), normal(256, 64)
    plan = all_stored(planned(model, BASE, (x,), {}, Bounds(error=0.1)), 4)
    found = measured_error(model, (x,), {}, plan, lambda output: output.square().mean())
    exact = gradients(copy.deepcopy(model), x)
    integrations.compress_model(model, "L0", checkpoint=plan)
    rounded = gradients(model, x)
    error = sum((rounded[name] - value).square().sum() for name, value in exact.items())
    whole = sum(value.square().sum() for value in exact.values())
    assert found > 0
    # The rounding of two steps is drawn anew: the error is a sum over many thousand elements.
    assert (error / whole).sqrt().item() == pytest.approx(found, rel=0.2)


def test_sensitivities_predict_what_is_measured():
    model, x = blocks(), normal(256, 64)

    def loss(output):
        return (output - 1).square().mean()

    found = sensitivities(model, (x,), {}, loss)

    def weights(graph, saves):
        return measured_weights(graph, saves, found)

    plan = planned(model, BASE, (x,), {}, Bounds(error=0.1), loss=loss, weights=weights)
    for bits in (3, 6):
        rounded = all_stored(plan, bits)
        # The estimator alone is off by up to 1.7 in the variance of one tensor (test_adaptive_sensitivity.py).
        assert rounded.choice.error == pytest.approx(measured_error(model, (x,), {}, rounded), rel=0.35)


def test_what_has_no_elements_is_not_measured_and_says_so():
    model, x = blocks(1), normal(32, 64)
    plan = all_stored(planned(model, BASE, (x,), {}, Bounds(error=0.1)), 4)
    with pytest.raises(Unmeasured, match="no elements"):
        measured_error(model, (x.to("meta"),), {}, plan)
    assert sensitivities(model, (x.to("meta"),), {}) is None
    found = within_error(plan, lambda one: measured_error(model, (x.to("meta"),), {}, one))
    assert (found.choice, found.measured) == (plan.choice, None)
    assert "meta device" in found.unmeasured
    assert "meta device" in type(found).from_json(found.to_json()).unmeasured
