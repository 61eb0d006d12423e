"""Q-layers of PyTorch Geometric's linear layers, and the reasons for its layers that have none."""

import copy
import pickle

import pytest
import torch
from torch import nn

import integrations
from integrations import fewbit, qmodules
from integrations.qmodules import QLevel

from .nets import EIGHT_BITS, normal, relative_error

pyg_nn = pytest.importorskip("torch_geometric.nn", reason="torch-geometric is not installed")

NODES = 200
X = normal(NODES, 64)
EDGES = torch.randint(NODES, (2, 1000), generator=torch.Generator().manual_seed(1))
BITS_8 = QLevel(bits=(8,), per_sample=False, per_layer=False)


class GCNII(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last, self.relu = pyg_nn.Linear(64, 64), pyg_nn.Linear(64, 4), nn.ReLU()
        self.convs = nn.ModuleList([pyg_nn.GCN2Conv(64, 0.1, 0.5, number) for number in (1, 2)])

    def forward(self, x, edges):
        h = first = self.relu(self.first(x))
        for conv in self.convs:
            h = self.relu(conv(h, first, edges))
        return self.last(h)


MODELS = {
    "GCN": (lambda: pyg_nn.GCN(64, 64, 2, 4), 2),
    "SAGE": (lambda: pyg_nn.GraphSAGE(64, 64, 2, 4), 4),
    "GAT": (lambda: pyg_nn.GAT(64, 64, 2, 4, heads=4), 2),
    "GIN": (lambda: pyg_nn.GIN(64, 64, 2, 4), 4),
    "GCNII": (GCNII, 2),
}
every_model = pytest.mark.parametrize(("make", "linears"), MODELS.values(), ids=MODELS.keys())


def made(make):
    torch.manual_seed(0)
    return make()


def gradients(model):
    model.zero_grad()
    model(X, EDGES).square().sum().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@every_model
def test_its_linear_layers_are_converted(make, linears):
    model = made(make)
    plain = gradients(copy.deepcopy(model))
    converted = qmodules.summary(qmodules.QModule(model, BITS_8)).converted.values()
    assert list(converted).count(("torch_geometric.nn.Linear", "QPyGLinear")) == linears
    found = gradients(model)
    # The weight's gradient has the error of its own input, once for each layer that it passed.
    assert 0 < relative_error(plain, found) < EIGHT_BITS
    assert gradients(qmodules.restore_model(model)).keys() == plain.keys()
    assert relative_error(plain, gradients(model)) == 0


@every_model
def test_their_inputs_are_stored_in_bits(make, linears):
    model = integrations.compress_model(made(make), level="L0", layers={"level": "L2"})
    gradients(model)
    rows = [row for row in integrations.compression(model).report().rows if row.operator == "QPyGLinear"]
    inputs = [row for row in rows if row.shape[0] == NODES and row.role == "input"]
    assert len(inputs) == linears
    for row in inputs:  # 4 bits an element, 8 bytes a group of 256, and the anchor of one that has a history
        elements = NODES * row.shape[-1]
        assert row.stored_bytes - (elements // 2 + 8 * -(-elements // 256)) in (0, 4)


def test_a_q_layer_is_a_linear_layer_of_the_library():
    layer = pyg_nn.Linear(64, 8, weight_initializer="glorot", bias_initializer="zeros")
    keys, weight = list(layer.state_dict()), layer.weight
    model = qmodules.QModule(nn.Sequential(layer), BITS_8)
    q = model[0]
    assert isinstance(q, pyg_nn.Linear)
    assert q.weight is weight
    assert list(q.state_dict()) == keys
    assert repr(q) == "QPyGLinear(64, 8, bias=True)"
    for twin in (copy.deepcopy(q), pickle.loads(pickle.dumps(q))):
        assert type(twin) is type(q)
        assert twin.weight is not weight
        assert torch.equal(twin.weight, weight)
    seen = []
    layer.register_forward_hook(lambda *_: seen.append(1))  # on the original: both hold the same hooks
    q.reset_parameters()  # as the library's does: glorot, and zeros
    assert not q.bias.any()
    assert torch.equal(q(x=X), q.eval()(X))
    assert seen == [1, 1]
    back = qmodules.restore_model(model)[0]
    assert type(back) is pyg_nn.Linear
    assert back.weight is weight
    assert vars(back).keys() == vars(layer).keys()


def test_layers_that_stay_are_named_with_their_package():
    model = nn.Sequential(pyg_nn.Linear(-1, 8), pyg_nn.HeteroLinear(8, 8, 2), nn.Softmax(-1))
    assert qmodules.summary(qmodules.QModule(model, "L2")).kept == {
        "0": "its parameters have no shapes yet; call the model once before QModule",
        "1": "there is no Q-layer of torch_geometric.nn.HeteroLinear",
        "2": "there is no Q-layer of Softmax",
    }

    class Linear(pyg_nn.Linear):
        pass

    [why] = qmodules.summary(qmodules.QModule(nn.Sequential(Linear(8, 8)), "L2")).kept.values()
    assert why == f"{__name__}.{Linear.__qualname__} is a subclass of torch_geometric.nn.Linear"
    with pytest.raises(TypeError, match=r"module must be a torch_geometric\.nn\.Linear, not a subclass, got Linear"):
        type(qmodules.QModule(nn.Sequential(pyg_nn.Linear(8, 8)))[0]).from_module(nn.Linear(8, 8))


def test_a_lazy_layer_is_converted_once_it_has_shapes():
    model = nn.Sequential(pyg_nn.Linear(-1, 8), nn.ReLU())
    model(X)
    qmodules.QModule(model, BITS_8)
    assert repr(model[0]) == "QPyGLinear(64, 8, bias=True)"
    model(X).sum().backward()


def test_few_bit_conversions_take_the_same_layers():
    found = fewbit.summary(fewbit.convert(made(MODELS["SAGE"][0]), linear=0.5))
    assert found.sketched == 4
