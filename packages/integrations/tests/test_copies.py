"""Copies of a compressed model, in memory and in files: a handle of their own, level and step alike, nothing shared."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import integrations

from .nets import assert_same, gradients, mlp, normal, rows

X = normal(48, 64)


def saved_and_loaded(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "deepcopy": copy.deepcopy,
    "torch.save": saved_and_loaded,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "deepcopy of the handle": lambda model: copy.deepcopy(integrations.compression(model)).model,
    "pickled handle": lambda model: pickle.loads(pickle.dumps(integrations.compression(model))).model,
    "inside another module": lambda model: copy.deepcopy(nn.ModuleDict({"net": model}))["net"],
}
every_copy = pytest.mark.parametrize("make", COPIES.values(), ids=COPIES.keys())


@every_copy
def test_a_copy_has_a_handle_of_its_own(make):
    model = integrations.compress_model(mlp(), "L1.2", seed=3)
    model(X).sum().backward()
    twin = make(model)
    handle = integrations.compression(twin)
    assert handle is not integrations.compression(model)
    assert handle.model is twin
    assert (handle.level_name, handle.step) == ("L1.2", 1)
    assert handle.level == integrations.compression(model).level


@every_copy
def test_a_copy_rounds_as_the_original_would_have(make):
    model = integrations.compress_model(mlp(), "L1.2")
    gradients(model, X)
    twin = make(model)
    assert_same(gradients(model, X), gradients(twin, X))


@every_copy
def test_a_copy_and_the_original_do_not_feel_each_other(make):
    model = integrations.compress_model(mlp(), "L1.2")
    twin = make(model)
    gradients(twin, X)
    assert (integrations.compression(model).step, integrations.compression(twin).step) == (0, 1)
    assert rows(model) == []
    assert [row.module for row in rows(twin)] == ["1", "2", "3", "4", "5"]

    integrations.restore_model(twin)
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in twin.modules())
    assert "forward" not in vars(twin)
    assert_same(gradients(mlp(), X), gradients(twin, X))

    gradients(model, X)
    assert [row.module for row in rows(model)] == ["1", "2", "3", "4", "5"]
    integrations.restore_model(model)


def test_a_copy_made_while_a_forward_runs():
    """An exponential average of the weights is sometimes copied in a hook."""
    model = integrations.compress_model(mlp(), "L1.2")
    copies = []
    hook = model[2].register_forward_hook(lambda *args: copies.append(copy.deepcopy(model)) if not copies else None)
    model(X).sum().backward()
    hook.remove()
    [twin] = copies
    assert integrations.compression(twin)._sessions == {}
    twin(X).sum().backward()
    assert integrations.compression(twin).step == 2


def test_a_copy_of_a_model_with_its_own_forward():
    model = mlp()
    model.forward = Tripled(model)
    integrations.compress_model(model, "L1.2")
    twin = copy.deepcopy(model)
    assert_same(gradients(model, X), gradients(twin, X))
    integrations.restore_model(twin)
    assert isinstance(vars(twin)["forward"], Tripled)
    assert twin.forward.model is twin


class Tripled:
    def __init__(self, model):
        self.model = model

    def __call__(self, x):
        return nn.Sequential.forward(self.model, x) * 3


def test_a_compressed_part_in_a_copied_whole():
    whole = nn.Sequential(nn.Linear(64, 64), integrations.compress_model(mlp(), "L1.2"))
    twin = copy.deepcopy(whole)
    twin(X).sum().backward()
    assert integrations.compression(twin[1]).model is twin[1]
    assert (integrations.compression(whole[1]).step, integrations.compression(twin[1]).step) == (0, 1)


@pytest.mark.parametrize("options", [{}, {"activations": 2}, {"linear": 0.5}, {"layers": "q"}])
def test_a_shallow_copy_runs_its_own_layers(options):
    """So do replicas of ``nn.DataParallel``, whose parameters are on another device."""
    torch.manual_seed(0)
    model = integrations.compress_model(nn.Sequential(nn.Linear(8, 8), nn.GELU()), "L1", **options).train()
    replica = copy.copy(model)
    replica._modules = {**model._modules, "0": nn.Linear(8, 8)}
    x = torch.randn(4, 8)
    with pytest.warns(UserWarning, match="a shallow copy of the compressed Sequential"):
        found = replica(x)
    assert torch.equal(found, nn.functional.gelu(replica[0](x)))
