"""A model that is compressed, converted or planned goes with its last reference, as a plain one does."""

import copy
import pickle
import weakref

import pytest
import torch
from torch import nn

import integrations
from integrations import checkpoint, fewbit, qmodules
from integrations._utils.module_tree import exchange, find_module_paths

from .nets import mlp, normal

X = normal(48, 64)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm, self.act = nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()

    def forward(self, x):
        return x + self.act(self.norm(self.linear(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.Sequential(Block(), Block()), nn.Linear(64, 8)

    def forward(self, x):
        return nn.functional.gelu(self.head(self.blocks(x)))


def planned(model):
    checkpoint.plan(model, (X,))
    return model


WAYS = {
    "plain": (lambda model: model, lambda model: model),
    **{
        level: (lambda model, level=level: integrations.compress_model(model, level), integrations.restore_model)
        for level in ("L0", "L1", "L2", "L4bit-swap")
    },
    "L1 with a plan": (
        lambda model: integrations.compress_model(model, "L1", checkpoint="optimal"),
        integrations.restore_model,
    ),
    "L1 with exchanged layers": (
        lambda model: integrations.compress_model(model, "L1", activations="fewbit", linear=0.5),
        integrations.restore_model,
    ),
    "Q-layers under L1": (
        lambda model: integrations.compress_model(model, "L1", layers="q"),
        integrations.restore_model,
    ),
    "plan": (planned, lambda model: model),
    "apply": (lambda model: checkpoint.apply(model, checkpoint.plan(model, (X,))), checkpoint.restore_model),
    "convert": (fewbit.convert, fewbit.restore_model),
    "QModule": (lambda model: qmodules.QModule(model, "L2"), qmodules.restore_model),
}


def step(model):
    model(X).square().mean().backward()


def references(model):
    return [weakref.ref(part) for part in (model, *model.parameters(), *model.modules())]


def alive(model_references):
    return [reference() for reference in model_references if reference() is not None]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.usefixtures("no_garbage_collection")
def test_a_model_goes_with_its_last_reference(way, steps):
    make, restore = WAYS[way]
    model, restored = make(Net()), make(Net())
    for _ in range(steps):
        step(model)
        step(restored)
    restore(restored)
    watched = references(model) + references(restored)
    del model, restored
    assert not alive(watched)


def exchanged_by_hand():
    model = mlp()
    exchange(model, lambda path, module: nn.Tanh() if isinstance(module, nn.ReLU) else module)
    find_module_paths(model)
    return model


def looked_at():
    model = integrations.compress_model(Net(), "L2")
    handle = integrations.compression(model)
    handle.adapt(lambda: step(model))
    handle.gradient_error(lambda: step(model))
    handle.report(lambda: step(model))
    handle.monitor(every=1)
    handle.load_state_dict(handle.state_dict())
    step(model)
    return model


def raised():
    model = integrations.compress_model(Net())
    with pytest.raises(RuntimeError):
        model(normal(3, 3))
    return model


def without_backward():
    model = integrations.compress_model(Net(), "L2")
    for _ in range(3):
        model(X)
    return model


@pytest.mark.parametrize("make", [exchanged_by_hand, looked_at, raised, without_backward])
@pytest.mark.usefixtures("no_garbage_collection")
def test_whatever_was_done_with_it(make):
    model = make()
    watched = references(model)
    del model
    assert not alive(watched)


@pytest.mark.usefixtures("no_garbage_collection")
def test_a_block_leaves_nothing_but_its_handle():
    model = Net()
    for _ in range(3):
        with integrations.compress(model, "L2") as handle:
            step(model)
    watched = references(model)
    del model, handle
    assert not alive(watched)


@pytest.mark.parametrize("make", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.usefixtures("no_garbage_collection")
def test_a_copy_goes_before_the_original(make):
    model = integrations.compress_model(mlp(), "L2")
    step(model)
    twin = make(model)
    step(twin)
    watched = references(twin)
    del twin
    assert not alive(watched)
    step(model)


@pytest.mark.usefixtures("no_garbage_collection")
def test_who_has_the_handle_keeps_the_model():
    handle = integrations.compression(integrations.compress_model(Net()))
    assert integrations.compression(handle.model) is handle
    step(handle.model)
    assert len(handle.report().rows) > 0
    watched = references(handle.model)
    state = weakref.ref(handle)
    del handle
    assert not alive([*watched, state])


def test_what_was_the_handle_of_a_model_goes_on_after_it_was_let_go():
    model = integrations.compress_model(Net())
    integrations.compression(model)._redraw = None
    step(model)
    assert integrations.compression(model).step == 1
    integrations.compression(model).step = 5
    step(model)
    assert integrations.compression(model).step == 6


@pytest.mark.usefixtures("no_garbage_collection")
def test_a_gradient_is_there_after_the_model_went():
    """Autograd keeps the parameters until backward has passed, and needs nothing of the model."""
    for way in WAYS:
        plain, model = Net(), Net()
        model.load_state_dict(plain.state_dict())
        weight, expected = model.head.weight, plain.head.weight
        loss = WAYS[way][0](model)(X).square().mean()
        plain(X).square().mean().backward()
        del model
        loss.backward()
        # The head's weight gradient has no more than 2 bits' rounding of one input's elements in it: at most half of a
        # step of a third of their range, which is some 8 of their standard deviations.
        error = (weight.grad - expected.grad).norm() / expected.grad.norm()
        assert error < 8 / 3 / 2, way


def test_a_forward_whose_model_went_says_so():
    forward = integrations.compress_model(Net()).forward
    with pytest.raises(ReferenceError, match="keep a reference to the model itself"):
        forward(X)


def test_a_shallow_copy_outlives_the_original():
    model = integrations.compress_model(Net())
    twin = copy.copy(model)
    del model
    with pytest.warns(UserWarning, match="shallow copy"):
        assert torch.isfinite(twin(X)).all()


@pytest.mark.parametrize("make", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize("first", ["model", "handle"])
def test_a_model_that_holds_its_own_handle_is_copied(make, first):
    """As Lightning's module does in training, by its trainer's callbacks."""
    model = integrations.compress_model(mlp())
    model.handles = {"handle": integrations.compression(model)}
    step(model)
    twin = make(model) if first == "model" else make(integrations.compression(model)).model
    handle = integrations.compression(twin)
    assert twin.handles["handle"] is handle
    assert (handle.model, handle.step) == (twin, 1)
    step(twin)
    assert (handle.step, integrations.compression(model).step) == (2, 1)


def test_steps_of_others_after_a_model_went_and_its_shallow_copy_stayed():
    model = integrations.compress_model(mlp())
    twin = copy.copy(model)
    del model
    other = nn.Linear(2, 2)
    other(torch.ones(1, 2)).sum().backward()
    torch.optim.SGD(other.parameters()).step()
    assert twin.training
