"""Blocks of ``integrations.compress`` at adaptive levels: each is a step, and the next uses what one has measured."""

import copy
import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations

from .nets import assert_same, mlp, normal

X, TARGET = normal(48, 64), normal(48, 64, seed=1)


class Blocks:
    """A training loop with a block in each step."""

    def __init__(self, level="L2.2", backward="inside", **options):
        torch.manual_seed(0)
        self.model = nn.Sequential(mlp(), nn.Dropout(0.2), nn.BatchNorm1d(64), nn.Linear(64, 64))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.level, self.backward, self.options = level, backward, options
        self.handles = []

    def loss(self):
        return F.mse_loss(self.model(X), TARGET)

    def block(self):
        return integrations.compress(self.model, self.level, **self.options)

    def step(self, state=None):
        self.optimizer.zero_grad()
        with self.block() as handle:
            if state is not None:
                handle.load_state_dict(state)
            loss = self.loss()
            if self.backward == "inside":
                loss.backward()
            elif self.backward == "function":
                torch.autograd.backward([loss])
            elif self.backward == "grad":
                parameters = list(self.model.parameters())
                for parameter, grad in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                    parameter.grad = grad
        if self.backward == "after":
            loss.backward()
        self.optimizer.step()
        self.handles.append(handle)
        return loss.item()

    def train(self, steps):
        return [self.step() for _ in range(steps)]


class Converted(Blocks):
    """The same loop with a converted model."""

    def __init__(self, level="L2.2", **options):
        super().__init__(level)
        integrations.compress_model(self.model, level, **options)

    def step(self):
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def seeded(loop):
    torch.manual_seed(1)
    return loop


@pytest.mark.parametrize("backward", ["inside", "function", "grad", "after"])
def test_blocks_train_as_a_converted_model_does(backward):
    """Bit for bit: bits, noise, what is measured and when."""
    converted, blocks = Converted(adapt_interval=3, bits=3), Blocks(backward=backward, adapt_interval=3, bits=3)
    expected, found = (seeded(loop).train(6) for loop in (converted, blocks))
    assert expected == found
    plan = integrations.compression(converted.model).plan
    found = blocks.handles[-1].plan
    assert found.step == plan.step == 4
    # Costs differ by the noise with which they were measured: blocks see the loss, too, and draw for it.
    for one, other in zip(plan.allotments, found.allotments, strict=True):
        assert (one.identities, one.bits) == (other.identities, other.bits)
    bits = [{row.codec for row in handle.report().rows if "GroupAffine" in row.codec} for handle in blocks.handles]
    assert bits[0] != bits[2]


def test_the_second_block_is_measured_and_the_third_uses_it():
    blocks = Blocks()
    made = []
    for _ in range(3):
        with blocks.block() as handle:
            made.append(handle.plan)
            blocks.loss().backward()
        blocks.handles.append(handle)
    assert made[:2] == [None, None]
    assert made[2].step == 1
    assert "No plan yet" not in str(blocks.handles[2].report())


def test_measuring_changes_no_gradient():
    blocks = Blocks(level="L2")
    seeded(blocks).train(1)
    with blocks.block() as handle:
        assert handle._adapter._probe is not None
        blocks.loss().backward()
    found = {name: p.grad.clone() for name, p in blocks.model.named_parameters()}
    other = Blocks(level="L2")
    seeded(other).train(1)
    with other.block() as handle:
        handle._adapter._probe.cancel()
        other.loss().backward()
    assert_same(found, {name: p.grad for name, p in other.model.named_parameters()})


def test_of_several_backwards_the_first_is_measured():
    """As with gradients that accumulate: what is saved afterwards is not in it, and has the bits of its level."""
    once, twice = Blocks(), Blocks()
    seeded(once).train(2)
    seeded(twice).train(1)
    with twice.block() as handle:
        twice.loss().backward()
        (twice.model[0](X).sin() * X.sin()).sum().backward()
    assert handle.plan == once.handles[-1].plan


def test_a_gradient_taken_inside_of_a_compressed_forward_does_not_end_its_measurement():
    class Inner(nn.Module):
        def __init__(self, ask):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second, self.ask = mlp(depth=2), mlp(depth=2), ask

        def forward(self, x):
            x = self.first(x)
            if self.ask:
                torch.autograd.grad(x.sum(), list(self.first.parameters()), retain_graph=True)
            return self.second(x)

    plans = []
    for ask in (True, False):
        model = integrations.compress_model(Inner(ask), "L2")
        for _ in range(2):
            model(X).sum().backward()
        plans.append(integrations.compression(model).plan)
    assert plans[0] == plans[1]


def test_other_levels_options_and_models_have_plans_of_their_own():
    blocks, other = Blocks(), Blocks()
    blocks.train(2)
    other.train(1)
    for model, options, has in ((blocks, {}, True), (blocks, {"bits": 3}, False), (other, {}, False)):
        with integrations.compress(model.model, "L2.2", **options) as handle:
            assert (handle.plan is not None) == has
            model.loss().backward()
    with integrations.compress(copy.deepcopy(blocks.model), "L2.2") as handle:
        assert handle.plan is None
        handle.model(X).sum().backward()


def test_adapt_makes_a_plan_for_the_blocks_that_follow():
    blocks = Blocks("L2")
    blocks.train(1)
    [handle] = blocks.handles
    random = torch.get_rng_state()
    plan = handle.adapt(lambda: blocks.loss().backward())
    assert torch.equal(random, torch.get_rng_state())
    with blocks.block() as later:
        assert later.plan == plan
        blocks.loss().backward()
    assert handle.gradient_error(lambda: blocks.loss().backward()).measured
    error = handle.gradient_error(lambda: blocks.loss().backward()).relative
    assert 0 < error < 1


@pytest.mark.parametrize("name", ["adapt", "gradient_error"])
def test_inside_of_a_block_there_is_no_trial(name):
    blocks = Blocks()
    with blocks.block() as handle:
        with pytest.raises(RuntimeError, match="Call it after the with statement"):
            getattr(handle, name)(lambda: blocks.loss().backward())
        blocks.loss().backward()


def test_a_closure_that_opens_a_block_is_told():
    blocks = Blocks()
    blocks.train(1)
    with pytest.raises(ValueError, match=r"in a block of integrations\.compress already"):
        blocks.handles[0].adapt(blocks.step)


def test_a_block_is_not_monitored():
    blocks = Blocks()
    with blocks.block() as handle:
        with pytest.raises(ValueError, match="call compress_model"):
            handle.monitor(lambda: None)
        blocks.loss().backward()


def test_a_block_that_fails_is_not_measured():
    blocks = Blocks()
    blocks.train(1)
    blocks.loss, loss = lambda: failing(loss()), blocks.loss
    with pytest.raises(torch.OutOfMemoryError):
        blocks.step()
    blocks.loss = loss
    blocks.train(3)
    assert blocks.handles[-1].plan.step == 2


def failing(loss):
    raise torch.OutOfMemoryError(f"no memory for more than {loss}")


@pytest.mark.parametrize("loaded", ["in the first block", "when a block is left"])
@pytest.mark.parametrize("level", ["L1", "L2.2"])
@pytest.mark.parametrize("before", [1, 2, 4])
def test_a_resumed_run_goes_on_bit_for_bit(before, level, loaded):
    first = Blocks(level, adapt_interval=2)
    first.train(before)
    states = copy.deepcopy((first.model.state_dict(), first.optimizer.state_dict(), first.handles[-1].state_dict()))
    generator = torch.get_rng_state()
    expected = first.train(4)
    resumed = Blocks(level, adapt_interval=2)
    if loaded == "when a block is left":
        resumed.train(3)
        resumed.handles[0].load_state_dict(states[2])
    resumed.model.load_state_dict(states[0])
    resumed.optimizer.load_state_dict(states[1])
    torch.set_rng_state(generator)
    start = [resumed.step(states[2])] if loaded == "in the first block" else []
    assert start + resumed.train(4 - len(start)) == expected
    ends = [loop.handles[-1] for loop in (first, resumed)]
    assert ends[0].step == ends[1].step == before + 4
    assert ends[0].plan == ends[1].plan


@pytest.mark.parametrize("when", ["after its forward", "in another's block"])
def test_a_state_that_comes_too_late_for_a_block_is_refused(when):
    blocks = Blocks(adapt_interval=2)
    blocks.train(2)
    state = copy.deepcopy(blocks.handles[-1].state_dict())
    with blocks.block() as handle:
        loss = blocks.loss() if when == "after its forward" else None
        with pytest.raises(RuntimeError, match="after the block"):
            (blocks.handles[0] if loss is None else handle).load_state_dict(state)
        (blocks.loss() if loss is None else loss).backward()
    assert (handle.step, handle.plan.step) == (3, 1)


def test_a_state_of_another_level_is_refused_in_a_block():
    blocks = Blocks("L1")
    with blocks.block() as handle:
        with pytest.raises(ValueError, match=r"must be of the block's level, L1, got a state of L2\.2"):
            handle.load_state_dict(trained_state())
        assert (handle.level_name, handle.step, handle.plan) == ("L1", 1, None)
        blocks.loss().backward()


def trained_state():
    blocks = Blocks()
    blocks.train(2)
    return blocks.handles[-1].state_dict()


def test_a_state_that_does_not_fit_leaves_the_blocks_as_they_were():
    blocks = Blocks()
    blocks.train(2)
    plan = blocks.handles[-1].plan
    state = blocks.handles[-1].state_dict()
    with pytest.raises(ValueError, match="level"):
        blocks.handles[-1].load_state_dict({**state, "adaptive": {"plan": None}})
    with blocks.block() as handle:
        assert handle.plan == plan
        blocks.loss().backward()


def test_what_is_left_for_later_blocks_goes_with_the_model():
    blocks = Blocks()
    blocks.train(3)
    model = weakref.ref(blocks.model)
    del blocks
    gc.collect()
    assert model() is None
