"""What is stored lives exactly as long as autograd holds it; reference counting alone frees it."""

import weakref

import pytest
import torch
from torch import nn

import integrations
from integrations.runtime import session as session_module

from .nets import mlp, normal

X = normal(48, 64)


def net():
    """Everything that is stored in some way: signs, masks, values of 4 and 8 bits, kept inputs and kept results."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 64),
        nn.Tanh(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Dropout(),
        nn.LayerNorm(64),
        nn.Linear(64, 64),
        nn.GELU(),
    )


def alive(references):
    return sum(reference() is not None for reference in references)


@pytest.fixture
def sessions(monkeypatch):
    made = []

    class Noted(session_module.Session):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(weakref.ref(self))

    monkeypatch.setattr("integrations.api.handle.running_session.Session", Noted)
    return made


def test_a_measured_step_frees_everything(payloads, sessions, no_garbage_collection):
    model = integrations.compress_model(mlp(), "L2")
    for _ in range(2):
        model(normal(48, 64)).sum().backward()
    assert integrations.compression(model).plan is not None
    assert len(sessions) == 2
    assert all(reference() is None for reference in [*payloads, *sessions])


def kept_results(model):
    """Weak references to what the layers return, which some of them save as their result."""
    references = []
    for layer in model:
        layer.register_forward_hook(lambda module, args, output: references.append(weakref.ref(output)))
    return references


@pytest.mark.usefixtures("no_garbage_collection")
def test_dropping_the_loss_frees_everything(payloads, sessions):
    model = net()
    results = kept_results(model)
    integrations.compress_model(model)
    output = model(X)
    loss = output.square().sum()
    assert (
        alive(payloads) == len(payloads) == 8
    )  # a sign, a mask, codes and bounds for the norm, for the last layer and GELU
    del output, loss
    assert (alive(payloads), alive(results), alive(sessions)) == (0, 0, 0)


@pytest.mark.usefixtures("no_garbage_collection")
def test_backward_frees_everything(payloads):
    loss = integrations.compress_model(net())(X).sum()
    loss.backward()
    assert len(payloads) > 0
    assert alive(payloads) == 0
    del loss


@pytest.mark.usefixtures("no_garbage_collection")
def test_backward_frees_layer_by_layer(payloads):
    """When the first layer's backward runs, what the layers above stored is gone."""
    model = integrations.compress_model(mlp(64, 4))
    counts = []
    for layer in model:
        layer.register_full_backward_hook(lambda *args: counts.append(alive(payloads)))
    model(X.clone().requires_grad_()).sum().backward()
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1]


@pytest.mark.usefixtures("no_garbage_collection")
def test_a_replaced_copy_is_freed_at_once(payloads):
    """Four bits give way to eight, and all bits to the tensor itself."""

    class Upgrades(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm = nn.Linear(64, 64), nn.LayerNorm(64)

        def forward(self, x):
            h = x * 2
            parts = [self.linear(h)]
            self.counts = [alive(payloads)]
            parts.append(self.norm(h))
            self.counts.append(alive(payloads))
            parts.append(h.requires_grad_().cosh())
            self.counts.append(alive(payloads))
            return sum(parts)

    model = integrations.compress_model(Upgrades())
    model(X).sum().backward()
    assert model.counts == [2, 2, 0]


@pytest.mark.usefixtures("no_garbage_collection")
def test_a_forward_that_fails_frees_everything(payloads, sessions):
    model = net()
    model.append(nn.Linear(3, 3))
    integrations.compress_model(model)
    try:
        model(X)
    except RuntimeError as error:
        error.__traceback__ = None
    assert len(payloads) > 0
    assert (alive(payloads), alive(sessions)) == (0, 0)


@pytest.mark.usefixtures("no_garbage_collection")
def test_a_block_frees_everything(payloads, sessions):
    model = net()
    with integrations.compress(model) as handle:
        loss = model(X).sum()
        loss.backward()
    assert alive(payloads) == 0
    del loss
    assert alive(sessions) == 0
    assert len(handle.report().rows) > 0


@pytest.mark.usefixtures("no_garbage_collection")
def test_many_steps_hold_no_more_than_one(payloads):
    model = integrations.compress_model(net())
    for _ in range(5):
        payloads.clear()
        loss = model(X).sum()
        assert alive(payloads) == len(payloads)
    references = [*payloads]
    model(X).sum()
    assert alive(references) == len(references)  # the last loss is held
    del loss
    assert alive(references) == 0


@pytest.mark.usefixtures("no_garbage_collection")
def test_a_restored_model_is_freed_with_its_last_reference():
    model = integrations.restore_model(integrations.compress_model(net()))
    reference = weakref.ref(model)
    del model
    assert reference() is None
