"""What an adaptation must not touch: it runs a closure of the user's, and leaves training as it was."""

import pytest
import torch
from torch import nn

import integrations
from integrations.planner.sensitivity.graph import derive_backward

from .nets import mlp
from .trainer import Trainer, X, assert_equal


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
        derive_backward(*args)
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr("integrations.planner.sensitivity.probe.derive_backward", failing)
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

    why = "the model is in eval" if closure == "eval" else "call the model itself"
    for measure in (trainer.handle.adapt, trainer.handle.gradient_error):
        with pytest.raises(RuntimeError, match=f"must run a forward .* no compressed forward of Sequential: {why}"):
            measure(run)


def test_a_closure_without_a_backward():
    trainer = Trainer()
    with pytest.raises(RuntimeError, match="the forward must quantize a tensor; nothing was measured"):
        trainer.handle.adapt(lambda: trainer.model(X))
    with pytest.raises(RuntimeError, match="no parameter got a gradient"):
        trainer.handle.gradient_error(lambda: trainer.model(X))


@pytest.mark.parametrize("measure", ["adapt", "gradient_error"])
def test_a_closure_that_cannot_be_called(measure):
    trainer = Trainer()
    trainer.train(1)
    with integrations.compress(mlp(), "L2") as block:
        pass
    for handle in (trainer.handle, block):
        with pytest.raises(TypeError, match="closure must be a function that runs forward and backward, got 3; pass"):
            getattr(handle, measure)(3)


@pytest.mark.parametrize("measure", ["adapt", "gradient_error"])
def test_a_restored_model_is_not_measured(measure):
    trainer = Trainer()
    integrations.restore_model(trainer.model)
    with pytest.raises(RuntimeError, match=f"handle.{measure} needs a compressed model, .* was restored"):
        getattr(trainer.handle, measure)(trainer.closure)


def test_a_level_that_is_off_has_no_error():
    handle = integrations.compression(integrations.compress_model(mlp(), "L0"))
    with pytest.raises(ValueError, match="so that there is an error to measure, got 'L0'"):
        handle.gradient_error(lambda: handle.model(X).sum().backward())


def test_adapting_inside_of_an_adaptation_is_refused():
    trainer = Trainer()
    with pytest.raises(RuntimeError, match="must not be called from its own closure"):
        trainer.handle.adapt(lambda: trainer.handle.adapt(trainer.closure))
