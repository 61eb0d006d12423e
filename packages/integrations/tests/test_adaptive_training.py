"""Adaptation in a training loop: when it happens, and that a resumed run goes on as it was."""

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F

import integrations

from .trainer import TARGET, Trainer, X

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
