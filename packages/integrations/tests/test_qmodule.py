"""``QModule``, ``revert`` and ``summary``: what of a model survives a conversion, and what is converted."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from integrations import qmodules
from integrations.qmodules import LEVELS, QLevel

from .nets import normal
from .qnets import step


@pytest.fixture(autouse=True)
def settings():
    yield
    qmodules.set_optimization_level("L3")


class Own(nn.Conv2d):
    """A subclass, which may do something else."""


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 8, 3)
        self.own = Own(8, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Conv2d(8, 8, 1), self.relu), nn.Identity()])
        self.softmax = nn.Softmax(1)
        self.flatten = nn.Flatten()
        self.head = nn.Linear(8 * 16, 4)

    def forward(self, x):
        x = self.relu(self.norm(self.own(self.conv(x))))
        for block in self.blocks:
            x = block(x)
        return self.softmax(self.head(self.flatten(x)))


X = normal(4, 3, 8, 8)


def test_the_same_object_with_the_same_parameters_names_and_buffers():
    model = Net().eval()
    before = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    keys, state = list(model.state_dict()), copy.deepcopy(model.state_dict())
    assert qmodules.QModule(model) is model
    after = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    assert before.keys() == after.keys()
    assert all(before[name] is after[name] for name in before)
    assert list(model.state_dict()) == keys
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert not any(module.training for module in model.modules())
    model.load_state_dict(state)


def test_print_shows_q_layers():
    text = str(qmodules.QModule(Net()))
    for name in ("QConv2d(3, 8", "QBatchNorm2d(8", "QReLU(inplace=True)", "QLinear(in_features=128", "own): Own("):
        assert name in text


def test_a_shared_layer_stays_one_layer():
    model = qmodules.QModule(Net())
    assert type(model.relu) is qmodules.QReLU
    assert model.blocks[0][1] is model.relu


def test_tied_weights_stay_tied():
    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20, bias=False))
    model[1].weight = model[0].weight
    qmodules.QModule(model, "L2")
    assert model[0].weight is model[1].weight
    model(torch.arange(20)).square().sum().backward()
    assert model[0].weight.grad is not None
    assert len(list(model.parameters())) == 1


def test_dtype_and_device_stay_and_can_change_later():
    model = qmodules.QModule(Net().double())
    assert model.conv.weight.dtype == torch.float64
    model.to(torch.float32)
    step(model, X)


def test_hooks_survive_and_their_handles_remove_them():
    model, seen = Net(), []
    forward = model.conv.register_forward_hook(lambda module, args, output: seen.append(type(module).__name__))
    backward = model.head.register_full_backward_hook(lambda module, *gradients: seen.append(type(module).__name__))
    qmodules.QModule(model)
    step(model, X)
    assert seen == ["QConv2d", "QLinear"]
    forward.remove()
    backward.remove()
    step(model, X)
    assert len(seen) == 2


def test_a_weight_that_hooks_compute_stays_computed():
    model = nn.Sequential(torch.nn.utils.spectral_norm(nn.Linear(16, 16)), nn.ReLU())
    plain = copy.deepcopy(model)
    qmodules.QModule(model, QLevel(bits=(8,), per_sample=False, per_layer=False))
    (expected, _), (output, _) = step(plain, normal(8, 16)), step(model, normal(8, 16))
    assert type(model[0]) is qmodules.QLinear
    assert torch.equal(output, expected)
    assert model.state_dict().keys() == plain.state_dict().keys()


def test_parametrized_layers_stay():
    model = qmodules.QModule(nn.Sequential(parametrizations.weight_norm(nn.Linear(16, 16))))
    assert "ParametrizedLinear is a subclass of torch.nn.Linear" in qmodules.summary(model).kept["0"]
    step(model, normal(8, 16))


def test_a_root_that_is_a_layer_becomes_its_q_layer():
    conv = nn.Conv2d(3, 8, 3)
    converted = qmodules.QModule(conv, "L2")
    assert type(converted) is qmodules.QConv2d
    assert converted.weight is conv.weight
    assert qmodules.summary(converted).converted == {"": ("Conv2d", "QConv2d")}
    reverted = qmodules.restore_model(converted)
    assert type(reverted) is nn.Conv2d
    assert reverted.weight is conv.weight


def test_revert_gives_back_what_was_there():
    model, plain = Net(), Net()
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    qmodules.QModule(model)
    step(model, X)
    step(plain, X)
    assert qmodules.restore_model(model) is model
    assert str(model) == str(plain)
    assert {name: set(vars(module)) for name, module in model.named_modules()} == attributes
    plain.load_state_dict(model.state_dict())
    (expected, gradients), (output, found) = step(plain, X), step(model, X)
    assert torch.equal(output, expected)
    assert all(map(torch.equal, gradients, found))
    qmodules.QModule(model, "L1")  # and again


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_are_converted_and_share_nothing(copier):
    model = qmodules.QModule(Net(), "L3")
    twin = copier(model)
    assert qmodules.summary(twin) == qmodules.summary(model)
    assert twin.conv.precision.model is twin.head.precision.model
    assert twin.conv.precision.model is not model.conv.precision.model
    weight = model.conv.weight.detach().clone()
    step(twin, X)
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(model.conv.weight, weight)
    assert type(qmodules.restore_model(twin).conv) is nn.Conv2d
    assert type(model.conv) is qmodules.QConv2d


def test_summary():
    found = qmodules.summary(qmodules.QModule(Net(), "L2"))
    assert found.level == LEVELS["L2"]
    assert list(found.converted) == ["conv", "norm", "relu", "blocks.0.0", "head"]
    assert found.converted["norm"] == ("BatchNorm2d", "QBatchNorm2d")
    assert dict(found.kept) == {
        "own": "Own is a subclass of torch.nn.Conv2d",
        "softmax": "there is no Q-layer of Softmax",
    }
    text = str(found)
    assert "5 layers converted, 2 kept" in text
    assert "2 x Conv2d -> QConv2d" in text
    assert "own: Own is a subclass of torch.nn.Conv2d" in text


def test_norms_stay_at_l1_and_the_summary_says_why():
    model = qmodules.QModule(Net(), "L1")
    assert type(model.norm) is nn.BatchNorm2d
    assert qmodules.summary(model).kept["norm"] == "norms are exact at this level"


def test_a_layer_whose_forward_was_replaced_stays():
    model = Net()
    model.conv.forward = lambda x, forward=model.conv.forward: forward(x) * 2
    qmodules.QModule(model)
    assert qmodules.summary(model).kept["conv"] == "its forward was replaced"


def test_what_else_stays():
    model = nn.Sequential(nn.LazyLinear(4), qmodules.QReLU(), nn.LSTM(4, 4), nn.MultiheadAttention(4, 2))
    kept = qmodules.summary(qmodules.QModule(model, "L2")).kept
    assert kept == {
        "0": "its parameters have no shapes yet; call the model once before QModule",
        "1": "a Q-layer already, with a level of its own",
        "2": "there is no Q-layer of LSTM",
    }  # and not attention's own linear layer


def test_the_level_is_the_models():
    qmodules.set_optimization_level("L2")
    first = qmodules.QModule(Net())
    qmodules.set_optimization_level("L0")
    second = qmodules.QModule(Net(), bits=(3,), compress=True)
    assert first.conv.precision.level == LEVELS["L2"]
    assert (second.conv.precision.level.bits, second.conv.precision.level.per_layer) == ((3,), False)
    third = qmodules.QModule(Net(), QLevel(seed=7))
    assert third.conv.precision.level.seed == 7


def test_errors():
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, got function"):
        qmodules.QModule(lambda x: x)
    with pytest.raises(ValueError, match=r"level must be one of L0, L1, L2, L3, L3.1, L4, L5, swap, got 'L9'"):
        qmodules.QModule(Net(), "L9")
    with pytest.raises(ValueError, match=r"options of a level are compress, bits, .*, got 'bit'"):
        qmodules.QModule(Net(), bit=4)
    with pytest.raises(ValueError, match=r"Net is not converted; call qmodules.QModule\(model\) first"):
        qmodules.summary(Net())
    model = qmodules.QModule(Net())
    with pytest.raises(ValueError, match=r"Net is converted already; call qmodules.restore_model\(model\) first"):
        qmodules.QModule(model)
    with pytest.raises(TypeError, match=r"module must be a torch.nn.Conv2d, not a subclass, got Own"):
        qmodules.QConv2d.from_module(Own(3, 3, 1))


def test_what_torch_refuses_is_refused_with_its_words():
    layer = qmodules.QConv2d(3, 8, 3)
    for x in (normal(4, 5, 8, 8), normal(4, 8), normal(4, 3, 8, 8, dtype=torch.float64)):
        with pytest.raises(RuntimeError) as expected:
            nn.Conv2d(3, 8, 3)(x)
        with pytest.raises(RuntimeError) as found:
            layer(x)
        assert str(found.value) == str(expected.value)
    for kind in (
        "Conv2d",
        "ConvTranspose1d",
        "Linear",
        "LayerNorm",
        "GroupNorm",
        "ReLU",
        "GELU",
        "MaxPool2d",
        "Dropout",
    ):
        arguments = {"Conv2d": (3, 8, 3), "ConvTranspose1d": (3, 8, 3), "GroupNorm": (2, 4), "Linear": (4, 4)}
        arguments = arguments.get(kind, (2,) if kind not in ("ReLU", "GELU", "Dropout") else ())
        for wrong in ([1.0], None):
            with pytest.raises((TypeError, AttributeError)) as expected:
                getattr(nn, kind)(*arguments)(wrong)
            with pytest.raises(type(expected.value)) as found:
                getattr(qmodules, f"Q{kind}")(*arguments)(wrong)
            assert str(found.value) == str(expected.value)
    with pytest.raises(ValueError, match="padding='same' is not supported for strided"):
        qmodules.QConv2d(3, 8, 3, padding="same", stride=2)
    with pytest.raises(ValueError, match="expected 4D input"):
        qmodules.QBatchNorm2d(8)(normal(4, 8))
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        qmodules.QBatchNorm1d(8)(normal(1, 8))


def test_a_loop_trains():
    model, twin = qmodules.QModule(Net(), "L3"), Net()
    losses = []
    for net in (model, twin):
        optimizer = torch.optim.SGD(net.parameters(), 0.5, momentum=0.9)
        for _ in range(30):
            loss = -net(X)[torch.arange(4), torch.arange(4)].log().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] < 0.7 > losses[1]  # from log(4) = 1.39
