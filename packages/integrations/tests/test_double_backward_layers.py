"""Layers that store tensors themselves warn if a backward with ``create_graph=True`` reads rounded tensors."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn

import integrations
from integrations import fewbit, qmodules

from .nets import normal
from .test_double_backward import hessian_product, warned

X = normal(64, 8, seed=1)


def slopes(model, x=X):
    """Differentiate the squared slope by the input."""
    x = x.clone().requires_grad_()
    [slope] = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return slope.square().mean()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        x = x.view(-1, 4, 8)
        return self.attention(x, x, x)[0]


class Convolutions(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv1d(2, 4, 3), nn.Tanh(), nn.Conv1d(4, 4, 2))

    def forward(self, x):
        return super().forward(x.view(-1, 2, 4))


def between(layer):
    """Put a layer between linear ones. The gradients by their inputs read nothing that is rounded."""
    return nn.Sequential(nn.Linear(8, 16), layer, nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))


def trained(model, loss, steps=2):
    for _ in range(steps):
        model.zero_grad()
        loss(model).backward()


def messages_of(model, loss, steps=2):
    return [message for message in warned(trained, model, loss, steps)[1] if "create_graph" in message]


NORMS = [nn.LayerNorm(16), nn.BatchNorm1d(16), nn.GroupNorm(1, 16), nn.RMSNorm(16)]
PRODUCTS = {"linear": lambda: between(nn.Tanh()), "relu": lambda: between(nn.ReLU()), "convolution": Convolutions}


def q_model(model):
    torch.manual_seed(0)
    return qmodules.QModule(copy.deepcopy(model), level="L2")


@pytest.mark.parametrize("norm", NORMS, ids=lambda norm: type(norm).__name__)
@pytest.mark.parametrize("loss", [slopes, hessian_product], ids=["by inputs", "by parameters"])
def test_q_norms_read_their_input_for_any_gradient(norm, loss):
    [message] = messages_of(q_model(between(norm)), loss)
    for word in ("Q-layers", "QModule on other parts", "qmodules.restore_model(model)", "without layers=", "bits=8"):
        assert word in message


@pytest.mark.parametrize("name", PRODUCTS)
def test_q_products_read_their_input_for_the_gradient_of_the_weight_alone(name):
    assert messages_of(q_model(PRODUCTS[name]()), slopes) == []
    assert len(messages_of(q_model(PRODUCTS[name]()), weight_product)) == 1


def weight_product(model):
    """Differentiate the gradient of one weight that a linear layer or convolution reads its rounded input for."""
    [gradient] = torch.autograd.grad(model(X).square().mean(), model[2].weight, create_graph=True)
    return gradient.square().sum()


def bias_product(model):
    [gradient] = torch.autograd.grad(model(X).square().mean(), model[2].bias, create_graph=True)
    return gradient.square().sum()


@pytest.mark.parametrize("name", PRODUCTS)
def test_gradients_of_biases_read_nothing_of_q_products(name):
    assert messages_of(q_model(PRODUCTS[name]()), bias_product) == []


def test_q_attention_warns_once():
    assert len(messages_of(q_model(Attention()), slopes)) == 1


def test_q_layers_by_hand_warn_once_each():
    assert len(messages_of(nn.Sequential(nn.Linear(8, 16), qmodules.QLayerNorm(16)), slopes)) == 1
    assert messages_of(nn.Sequential(qmodules.QReLU(), qmodules.QLeakyReLU()), slopes) == []


def plain(model):
    model(X).square().mean().backward()
    return model(X).sum()


def retained(model):
    model(X.clone().requires_grad_()).square().mean().backward(retain_graph=True)
    return plain(model)


@pytest.mark.parametrize("loss", [plain, retained])
def test_first_derivatives_stay_silent(loss):
    for model in (q_model(between(NORMS[0])), q_model(Attention()), randomized(), sampled(), gated()):
        assert messages_of(model, loss) == []


def randomized(**options):
    return fewbit.convert(between(nn.LeakyReLU()), linear={"proj_dim_ratio": 0.2} | options)


def sampled():
    model = between(nn.Tanh())
    model[2] = fewbit.LinearCRS.from_linear(model[2], proj_dim=4)
    return model


def gated(bits=4):
    return nn.Sequential(nn.Linear(8, 32), fewbit.ReGLU(bits=bits), nn.Linear(16, 1))


@pytest.mark.parametrize("model", [randomized, lambda: randomized(bits=8), sampled], ids=["sketch", "bits", "sample"])
def test_randomized_linear_layers_warn_once_of_gradients_of_their_weights(model):
    assert messages_of(model(), slopes) == []
    [message] = messages_of(model(), hessian_product)
    for word in ("randomized linear", "keep=", "fewbit.restore_model(model)", "without linear="):
        assert word in message


def test_copies_warn_as_their_model_does():
    for copied in (copy.deepcopy(randomized()), pickle.loads(pickle.dumps(randomized()))):
        assert len(messages_of(copied, hessian_product)) == 1
    copied = copy.deepcopy(q_model(between(NORMS[0])))
    assert len(messages_of(copied, slopes)) == 1


def test_gates_with_bits_warn():
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")  # the same warning is shown once
        for _ in range(2):
            slopes(gated())
    assert ["bits=None" in str(warning.message) for warning in found] == [True]
    assert messages_of(gated(None), slopes) == []


PIECEWISE = [fewbit.ReLU, fewbit.LeakyReLU, fewbit.Hardtanh]


@pytest.mark.parametrize("activation", PIECEWISE)
def test_piecewise_linear_activations_stay_silent(activation):
    assert messages_of(between(activation()), hessian_product) == []


def test_one_model_with_everything_warns_once_for_each_kind():
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        integrations.compress_model(model, level="L1", layers={"level": "L2"}, min_bytes=0)
    found = messages_of(model, hessian_product)
    assert sorted(message.split(":")[0].split()[0] for message in found) == ["Q-layers", "Sequential"]
