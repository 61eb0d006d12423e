"""A converted model that is copied, wrapped, compressed or given Q-layers."""

import copy
import pickle

import pytest
import torch
from torch import nn

import integrations
from integrations import fewbit, qmodules

from .fewbit_nets import Net, X, equal, step


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_are_converted_and_share_nothing(copier):
    model = fewbit.convert(Net(), functions=["silu", "gelu"])
    expected = step(model)
    twin = copier(model)
    assert equal(step(twin), expected)
    assert fewbit.summary(twin) == fewbit.summary(model)
    fewbit.restore_model(twin)
    assert equal(step(twin), step(Net()))
    assert equal(step(model), expected)
    assert type(model.block.act) is fewbit.SiLU


def test_a_shallow_copy_runs_with_its_own_parameters():
    """``nn.DataParallel``'s replicas are such copies."""
    model = fewbit.convert(Net())
    twin = copy.copy(model)
    twin._modules = dict(model._modules)
    twin.block = copy.copy(model.block)
    twin.block._modules = dict(model.block._modules)
    twin.block.linear = nn.Linear(32, 32)
    expected = step(model)
    found = step(twin)
    assert not torch.equal(found[0], expected[0])
    by_hand = copy.deepcopy(model)
    by_hand.block.linear.load_state_dict(twin.block.linear.state_dict())
    assert equal(found[:2], step(by_hand)[:2])
    twin.training = False
    with torch.no_grad():
        assert torch.equal(twin(X), found[0])


def test_what_wraps_the_forward_stays_and_calls_the_plain_one_after_restore():
    model = fewbit.convert(Net())
    inner = model.forward
    model.forward = lambda x: inner(x) * 2
    fewbit.restore_model(model)
    assert torch.equal(step(model)[0], step(Net())[0] * 2)
    assert equal(step(model)[1:], [2 * gradient for gradient in step(Net())[1:]])


@pytest.mark.parametrize("order", [("convert", "compress"), ("compress", "convert")])
@pytest.mark.parametrize("first_undone", ["convert", "compress"])
def test_with_compressed_models(order, first_undone):
    """Both stand in the forward's place, and either may leave first. Codes of 8 bits have 256 levels: a kilobyte of
    them must not be compressed, which would change gradients by far more than the rounding of linear inputs does."""
    do = {"convert": lambda m: fewbit.convert(m, 8), "compress": lambda m: integrations.compress_model(m, "L1.1")}
    undo = {"convert": fewbit.restore_model, "compress": integrations.restore_model}
    model, plain = Net(), step(Net())
    for name in order:
        do[name](model)
    found = step(model)
    assert torch.equal(found[0], plain[0])
    # 8 bits a linear input: 2 % (see nets.EIGHT_BITS); 8-bit steps: half a level's width, 0.2 % of the derivative's
    # range, in each of five activations one behind the other.
    assert all((a - b).norm() < 0.03 * b.norm() for a, b in zip(found, plain, strict=True))
    undo[first_undone](model)
    step(model)
    undo[({*undo} - {first_undone}).pop()](model)
    assert "forward" not in vars(model)
    assert equal(step(model), plain)


def test_with_q_layers():
    model = qmodules.QModule(Net(), "L2")
    fewbit.convert(model)
    assert type(model.block.act) is qmodules.QSiLU
    reason = "QSiLU is a subclass of SiLU, and may do something else"
    assert fewbit.summary(model).kept["block.act"].startswith(reason)
    step(model)
    fewbit.restore_model(model)
    qmodules.revert(model)
    assert equal(step(model), step(Net()))
