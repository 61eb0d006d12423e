"""compress_model, compression, restore_model: what they change on a model, and that it can be undone."""

import dataclasses
import inspect

import pytest
import torch
from torch import nn

import integrations

from .nets import assert_same, gradients, mlp, normal, rows

X = normal(48, 64)


class Documented(nn.Module):
    """A model whose forward has a signature worth reading."""

    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        """Scales what comes out."""
        return self.net(x) * scale


HOOKS = [
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
]


def everything(model):
    """Instance dictionaries without the tensors, and every hook, of every module."""
    return {
        path: {name: dict(value) if isinstance(value, dict) else value for name, value in vars(module).items()}
        for path, module in model.named_modules()
    }


def test_compress_model_returns_the_same_object():
    model = mlp()
    assert integrations.compress_model(model) is model
    assert integrations.restore_model(model) is model


def test_what_survives():
    model = Documented().double()
    before = type(model), list(model.state_dict()), dict(model.named_parameters()), inspect.signature(model.forward)
    text = repr(model)
    integrations.compress_model(model)
    assert (type(model), list(model.state_dict())) == before[:2]
    assert all(parameter is before[2][name] for name, parameter in model.named_parameters())
    assert inspect.signature(model.forward) == before[3]
    assert model.forward.__doc__ == Documented.forward.__doc__
    assert model.forward.__name__ == "forward"
    assert repr(model) == text
    assert next(model.parameters()).dtype == torch.float64
    assert model(X.double(), scale=2.0).shape == X.shape
    model.load_state_dict(Documented().state_dict())


def test_restore_leaves_no_trace():
    model = Documented()
    seen = []
    model.net[2].register_forward_hook(lambda *args: seen.append("hook"))
    before = everything(model)
    integrations.compress_model(model)
    assert everything(model) != before
    model(X).sum().backward()
    model.zero_grad()
    integrations.restore_model(model)
    assert everything(model) == before
    assert all(not getattr(module, kind) for name, module in model.named_modules() if name != "net.2" for kind in HOOKS)
    assert model.forward.__func__ is Documented.forward
    assert_same(gradients(Documented(), X), gradients(model, X))
    assert seen == ["hook"] * 2


def test_a_block_leaves_no_trace():
    model = Documented()
    before = everything(model)
    with integrations.compress(model):
        model(X).sum().backward()
    model.zero_grad()
    assert everything(model) == before


def test_a_forward_of_the_instances_own():
    """Libraries put one there; it is used under compression, and is there again afterwards."""
    model = mlp()
    original = model.forward

    def own(x):
        """The instance's own."""
        return original(x) * 3

    model.forward = own
    expected = gradients(model, X)
    integrations.compress_model(model, "L1.1")
    assert model.forward.__doc__ == own.__doc__
    assert inspect.signature(model.forward) == inspect.signature(own)
    found = gradients(model, X)
    assert found["0.bias"].equal(expected["0.bias"])
    assert [row.operator for row in rows(model)].count("linear") == 2
    integrations.restore_model(model)
    assert vars(model)["forward"] is own


def test_compressed_again_after_restoring():
    model = integrations.restore_model(integrations.compress_model(mlp(), "L1.2"))
    integrations.compress_model(model, "L1.1")
    model(X).sum().backward()
    handle = integrations.compression(model)
    assert (handle.level_name, handle.step) == ("L1.1", 1)
    assert [row.module for row in rows(model)] == ["1", "2", "3", "4", "5"]


def test_the_handle():
    model = integrations.compress_model(mlp(), "L1.2", seed=4)
    handle = integrations.compression(model)
    assert handle is integrations.compression(model)
    assert handle.model is model
    assert handle.level == dataclasses.replace(integrations.LEVELS["L1.2"], seed=4)
    assert repr(handle) == "Compression(Sequential, level='L1.2', step=0)"


def test_options_override_fields_of_a_level():
    options = {"bits": 3, "product_bits": 5, "norm_bits": 6, "group_size": 64, "min_bytes": 1, "seed": 9}
    model = integrations.compress_model(mlp(), "L1.2", **options)
    assert integrations.compression(model).level == dataclasses.replace(integrations.LEVELS["L1.2"], **options)
    assert integrations.LEVELS["L1.2"] == integrations.Level(bits=2, product_bits=4, pointwise_bits=4, attention_bits=4)


def test_levels_are_immutable():
    with pytest.raises(TypeError):
        integrations.LEVELS["L1"] = integrations.Level(bits=1)
    with pytest.raises(AttributeError):
        integrations.LEVELS["L1"].bits = 1
    assert list(integrations.LEVELS)[:4] == ["L0", "L1", "L1.1", "L1.2"]


def test_modules_added_later_are_found():
    """A module that was not there when the model was compressed."""
    model = integrations.compress_model(nn.Sequential(nn.Sequential(nn.Linear(64, 64))))
    model[0].append(nn.Linear(64, 64))
    model(X).sum().backward()
    assert [(row.module, row.codec[12:18]) for row in rows(model)] == [("0.1", "bits=4")]


def test_a_model_moved_and_cast_after_compression():
    model = integrations.compress_model(mlp()).to(torch.bfloat16)
    model(X.bfloat16()).sum().backward()
    assert [row.owner for row in rows(model, "linear", owned=True)].count("parameter") == 2
    assert {row.dtype for row in rows(model)} == {torch.bfloat16}


def test_backward_hooks_of_modules_work():
    model = integrations.compress_model(mlp())
    seen = []
    for layer in (model, model[2]):
        layer.register_full_backward_hook(lambda module, *args: seen.append(module))
    model(X.clone().requires_grad_()).sum().backward()
    assert seen == [model[2], model]


def test_bits_switch_level_0_on():
    model = integrations.compress_model(mlp(), "L0", bits=4)
    model(X).sum().backward()
    assert len(rows(model)) == 5
