"""Adaptation in a training loop: when it happens, what it must not touch, and that a resumed run goes on as it was."""

import copy
import io
import pickle
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations
from integrations.adaptive.graph import backward_of

from .nets import mlp, normal

X = normal(48, 64)
TARGET = normal(48, 64, seed=1)


class Trainer:
    """A model with dropout and batch norm at an adaptive level, and its optimizer."""

    def __init__(self, level="L2", **options):
        torch.manual_seed(0)
        self.model = nn.Sequential(mlp(), nn.Dropout(0.2), nn.BatchNorm1d(64), nn.Linear(64, 64))
        integrations.compress_model(self.model, level, **options)
        self.handle = integrations.compression(self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def closure(self):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(X), TARGET)
        loss.backward()
        return loss.item()

    def train(self, steps):
        losses = []
        for _ in range(steps):
            losses.append(self.closure())
            self.optimizer.step()
        return losses

    def snapshot(self):
        """Everything that a trial run might touch."""
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        named = dict(self.model.named_parameters())
        grads = {name: (id(p.grad), None if p.grad is None else p.grad.clone()) for name, p in named.items()}
        weights = {name: p.detach().clone() for name, p in named.items()}
        state = copy.deepcopy(self.optimizer.state_dict()["state"])
        generators = torch.get_rng_state(), random.getstate()
        return [buffers, grads, weights, state, generators, self.handle.step]


def assert_equal(one, other):
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert_equal(value, other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_equal(a, b)
    else:
        assert one == other


# ---- when ----


def test_an_unchanged_loop_adapts_in_its_second_step_and_every_interval():
    trainer = Trainer(adapt_interval=3)
    made = []
    for _ in range(9):
        trainer.train(1)
        made.append(None if trainer.handle.plan is None else trainer.handle.plan.step)
    assert made == [None, 1, 1, 1, 4, 4, 4, 7, 7]


def test_what_cannot_be_measured_is_tried_less_and_less_often():
    """Otherwise a loop whose every backward makes a graph of itself would pay for a measurement in every step."""
    trainer = Trainer()
    tried = []
    for step in range(40):
        loss = F.mse_loss(trainer.model(X), TARGET)
        if trainer.handle._adapter._probe is not None:
            tried.append(step)
        torch.autograd.grad(loss, list(trainer.model.parameters()), create_graph=True)
    assert tried == [1, 2, 4, 8, 16, 32]


def test_the_plan_holds_from_the_next_forward_on():
    trainer = Trainer("L2.2")
    codecs = []
    for _ in range(3):
        trainer.train(1)
        codecs.append([row.codec for row in trainer.handle.report().rows if "GroupAffine" in row.codec])
    assert codecs[0] == codecs[1] != codecs[2]


def test_a_forward_without_a_backward_is_measured_no_more():
    trainer = Trainer()
    trainer.train(1)
    lost, used = trainer.model(X), trainer.model(X)
    lost.sum().backward()
    assert trainer.handle.plan is None
    used.sum().backward()
    assert trainer.handle.plan.step == 2


def test_adapt_makes_a_plan_at_once():
    trainer = Trainer()
    plan = trainer.handle.adapt(trainer.closure)
    assert trainer.handle.plan is plan
    assert plan.nbytes <= plan.budget


def test_passes_are_limited_to_ten():
    trainer = Trainer()
    calls = []

    def counting():
        calls.append(trainer.closure())

    trainer.handle.adapt(counting, passes=10)
    assert len(calls) == 10
    for passes, error in ((11, ValueError), (0, ValueError), (True, TypeError), (2.0, TypeError)):
        with pytest.raises(error, match="passes must be"):
            trainer.handle.adapt(counting, passes=passes)
    assert len(calls) == 10


# ---- what it must not touch ----


@pytest.mark.parametrize("with_gradients", [False, True])
def test_adapt_leaves_training_as_it_was(with_gradients):
    trainer = Trainer()
    trainer.train(2)
    if not with_gradients:
        trainer.optimizer.zero_grad()
    before = trainer.snapshot()
    trainer.handle.adapt(trainer.closure)
    assert_equal(before, trainer.snapshot())


def test_adapt_does_not_change_the_noise_of_later_steps():
    """With a plan that is loaded after, so that bits do not differ."""
    runs = []
    for passes in (1, 4):
        trainer = Trainer()
        trainer.train(2)
        state = trainer.handle.state_dict()
        trainer.handle.adapt(trainer.closure, passes)
        trainer.handle.load_state_dict({**state, "step": trainer.handle.step})
        runs.append(trainer.train(2))
    assert runs[0] == runs[1]


def test_gradients_that_are_views_keep_their_values():
    """As DistributedDataParallel makes them, of buckets that its own backward writes to."""
    trainer = Trainer()
    trainer.train(1)
    weight = trainer.model[0][0].weight
    bucket = torch.ones(weight.numel() + 5)
    weight.grad = bucket[5:].view_as(weight)

    def closure():
        trainer.closure()
        bucket.zero_()

    trainer.handle.adapt(closure)
    assert weight.grad.data_ptr() == bucket[5:].data_ptr()
    assert bool((weight.grad == 1).all())


def stepping(trainer):
    trainer.closure()
    trainer.optimizer.step()


def by_hand(trainer):
    trainer.closure()
    with torch.no_grad():
        trainer.model[0][0].weight.sub_(1.0)


def through_data(trainer):
    trainer.closure()
    trainer.model[0][0].weight.data[0] += 1.0


@pytest.mark.parametrize("wrong", [stepping, by_hand, through_data])
def test_a_closure_that_steps_is_refused_before_it_does(wrong):
    trainer = Trainer()
    trainer.train(2)
    before = trainer.snapshot()
    plan = trainer.handle.plan
    with pytest.raises(RuntimeError, match="leave the parameters alone"):
        trainer.handle.adapt(lambda: wrong(trainer))
    assert_equal(before, trainer.snapshot())
    assert trainer.handle.plan == plan
    trainer.train(1)  # and the loop's own step is not refused


def test_a_failing_closure_leaves_training_as_it_was():
    trainer = Trainer()
    trainer.train(2)
    before, plan = trainer.snapshot(), trainer.handle.plan

    def closure():
        trainer.closure()
        raise torch.OutOfMemoryError("no memory")

    with pytest.raises(torch.OutOfMemoryError) as caught:
        trainer.handle.adapt(closure)
    assert "handle.adapt" in caught.value.__notes__[0]
    assert_equal(before, trainer.snapshot())
    assert trainer.handle.plan == plan


def test_an_error_inside_the_measurement_does_not_reach_the_step(monkeypatch):
    """Out of memory while a node runs once more: the step goes on, and the plan says what it assumed."""
    expected = Trainer(adaptive=False).train(2)
    trainer = Trainer()

    def failing(*args):
        backward_of(*args)
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr("integrations.adaptive.probe.backward_of", failing)
    assert trainer.train(2) == expected
    assert all("OutOfMemoryError" in entry.why for entry in trainer.handle.plan.allotments)


@pytest.mark.parametrize("kind", ["sparse", "complex", "nested autograd"])
def test_gradients_of_any_kind_are_no_obstacle(kind):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.words = nn.Embedding(50, 64, sparse=kind == "sparse")
            self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            x = self.one(self.words(x))
            return self.two(torch.fft.ifft(torch.fft.fft(x) * 2).real if kind == "complex" else x)

    gradients = []
    for adaptive in (True, False):
        model = integrations.compress_model(Net(), "L2", adaptive=adaptive)
        handle = integrations.compression(model)
        handle.step = 1
        loss = model(torch.arange(48)).square().mean()
        if kind == "nested autograd":
            loss.backward(retain_graph=True)
        loss.backward()
        assert (handle.plan is not None) == adaptive
        gradients.append([p.grad.to_dense() if p.grad.is_sparse else p.grad for p in model.parameters()])
    assert_equal(*gradients)


@pytest.mark.parametrize("closure", ["eval", "nothing", "no_grad"])
def test_a_closure_that_measures_nothing_says_so(closure):
    trainer = Trainer()

    def run():
        if closure == "eval":
            trainer.model.eval()(X).sum().backward()
        elif closure == "no_grad":
            with torch.no_grad():
                trainer.model(X)

    with pytest.raises(RuntimeError, match="must run a forward of the compressed model"):
        trainer.handle.adapt(run)


def test_adapting_inside_of_an_adaptation_is_refused():
    trainer = Trainer()
    with pytest.raises(RuntimeError, match="must not be called from its own closure"):
        trainer.handle.adapt(lambda: trainer.handle.adapt(trainer.closure))


# ---- state ----


def parts(trainer):
    return trainer.model, trainer.optimizer, trainer.handle


@pytest.mark.parametrize("before", [1, 2, 4, 6])
def test_a_resumed_run_goes_on_bit_for_bit(before):
    """Saved before the first plan, after it, and around a later one."""
    trainer = Trainer(adapt_interval=4)
    trainer.train(before)
    file = io.BytesIO()
    torch.save([[part.state_dict() for part in parts(trainer)], torch.get_rng_state()], file)
    expected = trainer.train(5)

    file.seek(0)
    resumed = Trainer("L1", seed=77)
    states, generator = torch.load(file, weights_only=True)
    for part, state in zip(parts(resumed), states, strict=True):
        part.load_state_dict(state)
    torch.set_rng_state(generator)
    assert resumed.train(5) == expected
    assert resumed.handle.plan == trainer.handle.plan


def test_a_state_of_the_first_version_loads():
    trainer = Trainer()
    state = {**trainer.handle.state_dict(), "version": 1, "step": 7}
    del state["adaptive"]
    trainer.handle.load_state_dict(state)
    assert trainer.handle.step == 7
    assert trainer.handle.plan is None


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_has_the_same_plan_and_goes_its_own_way(copied):
    trainer = Trainer()
    trainer.train(2)
    plan = trainer.handle.plan
    twin = integrations.compression(copied(trainer.model))
    assert twin.plan == plan
    twin.adapt(lambda: twin.model(10 * X).square().mean().backward())
    assert trainer.handle.plan is plan


def test_training_converges_as_it_does_without():
    """40 steps of Adam on noise: the loss falls by a few percent of itself, and L2.2 falls no less than half as far."""
    falls = []
    for level in ("L0", "L2.2"):
        losses = Trainer(level).train(40)
        falls.append(losses[0] - losses[-1])
    assert falls[1] > falls[0] / 2 > 0
