"""A training step that is taken beside the training, and leaves everything as it was."""

import copy
import random

import pytest
import torch

from integrations.planner.sensitivity.one_step import OneStep, Unmeasured, differentiable_outputs

from .nets import normal
from .rounding_plans import blocks


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
    taken = {}
    exact = step.gradients()
    assert not any(gradient is not None for gradient in step.gradients(take=taken.__setitem__))
    assert all(torch.equal(taken[place], gradient) for place, gradient in enumerate(exact) if gradient is not None)


def test_backward_starts_from_gradients_that_are_given():
    model, x = blocks(1), normal(32, 64)
    plain = copy.deepcopy(model)
    torch.manual_seed(1)
    output = plain(x)
    output.square().mean().backward()
    [returned] = differentiable_outputs(output)
    torch.manual_seed(1)
    found = OneStep(model, (x,), starts=[2 * returned.detach() / returned.numel()]).gradients()
    # The start is computed in another order of two products.
    for one, other in zip(found, plain.parameters(), strict=True):
        assert torch.allclose(one, other.grad, rtol=1e-5, atol=1e-8)
    for starts in ([], [torch.ones(3)], [None, None]):
        with pytest.raises(Unmeasured, match="other tensors"):
            OneStep(model, (x,), starts=starts).gradients()
