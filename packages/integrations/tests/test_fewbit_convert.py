"""``fewbit.convert``, ``restore_model`` and ``summary``: which layers are converted, and what of a model survives."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from integrations import fewbit
from integrations.fewbit import FUNCTIONS, RandomizedLinear

from .fewbit_nets import Block, Net, X, equal, kept_bytes, step
from .nets import normal

LAYERS = [
    nn.ReLU(inplace=True),
    nn.LeakyReLU(0.2),
    nn.Threshold(0.1, 2.0),
    nn.Hardsigmoid(),
    nn.Hardtanh(-2, 3),
    nn.ReLU6(),
    nn.Hardshrink(0.3),
    nn.Softshrink(0.3),
    nn.CELU(2.0),
    nn.ELU(0.5),
    nn.GELU(),
    nn.GELU("tanh"),
    nn.Hardswish(),
    nn.LogSigmoid(),
    nn.Mish(),
    nn.SELU(),
    nn.Sigmoid(),
    nn.SiLU(inplace=True),
    nn.Softplus(2.0, 10.0),
    nn.Softsign(),
    nn.Tanh(),
    nn.Tanhshrink(),
]
DEFAULTS = [layer for layer in LAYERS if type(layer) not in (nn.Sigmoid, nn.Tanh)]


@pytest.mark.parametrize("layer", LAYERS, ids=repr)
def test_every_layer_of_torch_becomes_fewbits_of_the_same_arguments(layer):
    model = fewbit.convert(nn.Sequential(nn.Linear(32, 32), copy.deepcopy(layer)), bits=4, functions="all")
    made = model[1]
    assert type(made) is getattr(fewbit, type(layer).__name__)
    assert getattr(made, "bits", 4) == 4
    assert all(getattr(made, name) == value for name, value in vars(layer).items() if not name.startswith("_"))
    restored = fewbit.restore_model(model)[1]
    assert type(restored) is type(layer)
    assert repr(restored) == repr(layer)


@pytest.mark.parametrize("layer", DEFAULTS, ids=repr)
def test_forward_is_torchs_bit_for_bit_and_bytes_fall(layer):
    plain = nn.Sequential(nn.Linear(64, 64), layer, nn.Dropout(0.0))
    model = fewbit.convert(copy.deepcopy(plain))
    x = normal(64, 64)
    assert torch.equal(model(x), plain(x))
    assert kept_bytes(model, x) < kept_bytes(plain, x)


def test_the_same_object_with_the_same_names_and_tensors():
    model = Net().eval()
    before = dict(model.named_parameters())
    keys, names = list(model.state_dict()), [name for name, _ in model.named_modules()]
    assert fewbit.convert(model) is model
    assert {name: id(p) for name, p in model.named_parameters()} == {name: id(p) for name, p in before.items()}
    assert list(model.state_dict()) == keys
    assert [name for name, _ in model.named_modules()] == names
    assert not any(module.training for module in model.modules())
    assert type(model.block.act) is fewbit.SiLU
    model.load_state_dict(Net().state_dict())


def test_what_a_layer_has_survives_there_and_back():
    model, seen = Net(), []
    model.block.act.note = "mine"
    act = model.block.act
    handle = act.register_forward_hook(lambda module, *args: seen.append(type(module).__module__.split(".")[0]))
    fewbit.convert(model)
    assert model.block.act.note == "mine"
    late = model.block.act.register_forward_hook(lambda *args: seen.append("late"))
    model(X)
    model.eval()
    fewbit.restore_model(model)
    assert model.block.act is act
    assert not act.training
    model(X)
    handle.remove()
    late.remove()
    model(X)
    assert seen == ["integrations", "late", "torch", "late"]


def test_shared_layers_stay_shared():
    act = nn.GELU()
    model = fewbit.convert(nn.Sequential(nn.Linear(4, 4), act, nn.ModuleList([act])))
    assert type(model[1]) is fewbit.GELU
    assert model[2][0] is model[1]
    fewbit.restore_model(model)
    assert model[1] is act is model[2][0]


def test_restore_gives_back_what_was_there():
    model, plain = Net(), Net()
    objects = {name: (id(module), set(vars(module))) for name, module in model.named_modules()}
    fewbit.convert(model, linear=0.5)
    few = step(model)
    assert fewbit.restore_model(model) is model
    assert {name: (id(module), set(vars(module))) for name, module in model.named_modules()} == objects
    assert str(model) == str(plain)
    assert equal(step(model), step(plain))
    assert not equal(few, step(plain))
    fewbit.convert(model, bits=2)  # and again


def test_dtype_and_device_may_change_in_between():
    model = fewbit.convert(Net(), linear=0.5).to(torch.float64)
    fewbit.restore_model(model)
    assert model.block.linear.weight.dtype == torch.float64
    step(model, X.double())


def test_a_root_that_is_an_activation_becomes_its_layer():
    act = nn.GELU()
    made = fewbit.convert(act, bits=2)
    assert type(made) is fewbit.GELU
    assert fewbit.summary(made).converted == {"": ("GELU", "fewbit.GELU")}
    assert fewbit.restore_model(made) is act
    assert fewbit.convert(act).bits == 3


def test_linear_layers_where_they_are_asked_for():
    class Own(nn.Linear):
        pass

    def make():
        return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), Own(8, 8), nn.LazyLinear(4), nn.MultiheadAttention(8, 2))

    model = make()
    first = model[0]
    fewbit.convert(model, linear=0.1)
    assert type(model[0]) is RandomizedLinear
    assert model[0].weight is first.weight
    assert model[0].sketching.proj_dim_ratio == 0.1
    found = fewbit.summary(model)
    assert found.converted == {"0": ("Linear", "fewbit.RandomizedLinear"), "1": ("ReLU", "fewbit.ReLU")}
    assert found.kept["2"] == "Own is a subclass of Linear"
    assert found.kept["3"] == "its parameters have no shapes yet; call the model once before convert"
    fewbit.restore_model(model)
    assert model[0] is first
    model = fewbit.convert(make(), linear={"proj_dim": 4, "matmul": "rademacher"}, functions=[])
    assert model[0].sketching.matmul == "rademacher"
    assert not isinstance(model[1], fewbit.ReLU)


def test_summary():
    model = nn.Sequential(Net(), nn.Tanh(), nn.PReLU(), fewbit.GELU(bits=1), nn.Softmax(1))

    class Own(nn.GELU):
        pass

    model.append(Own())
    model.append(nn.GELU())
    model[6].forward = lambda x: x
    fewbit.convert(model, bits=4)
    model(X)
    found = fewbit.summary(model)
    assert found.bits == 4
    assert found.converted == {
        "0.block.act": ("SiLU", "fewbit.SiLU"),
        "0.blocks.0.act": ("SiLU", "fewbit.SiLU"),
        "0.blocks.1": ("Mish", "fewbit.Mish"),
    }
    saved = "torch saves the result of tanh, mostly with what comes next; functions= converts it"
    assert found.kept == {
        "1": saved,
        "2": "PReLU has no few-bit form",
        "3": "GELU is a few-bit layer already",
        "4": "Softmax has no few-bit form",
        "5": "Own is a subclass of GELU, and may do something else; calls that its forward makes are converted",
        "6": "its forward was replaced",
    }
    assert found.calls == {"0.block": ("gelu",), "0.blocks.0": ("gelu",), "0": ("softplus",), "5": ("gelu",)}
    assert not found.kept_calls
    text = str(found)
    assert "3 layers converted, 6 kept; 4 calls seen and converted; 4 bits" in text
    assert "2 x SiLU -> fewbit.SiLU" in text
    assert f"  1: {saved}" in text
    assert "  0.block calls gelu" in text


def test_converting_twice_says_how_to_go_on():
    model = fewbit.convert(Net())
    with pytest.raises(ValueError, match=r"Net is converted already; call fewbit.restore_model\(model\) first"):
        fewbit.convert(model, bits=2)
    with pytest.raises(
        ValueError, match=r"Block is part of a converted model and has a few-bit layer at 'act'; call fewbit"
    ):
        fewbit.convert(model.block)
    assert equal(step(model), step(fewbit.convert(Net())))


WRONG = {
    "model": (TypeError, r"model must be a torch.nn.Module, got builtin_function", {}),
    "bits": (ValueError, "bits must be from 1 to 8", {"bits": 9}),
    "bits, of another type": (TypeError, "bits must be an int", {"bits": 2.5}),
    "rounding": (ValueError, "rounding must be 'nearest' or 'stochastic', got 'up'", {"rounding": "up"}),
    "weight": (ValueError, "weight must be .*, got 'mine'", {"weight": "mine"}),
    "functions": (ValueError, "functions must be 'all' or names of relu, .*; got 'gleu'", {"functions": ["gleu"]}),
    "keep": (
        ValueError,
        "keep must name modules of the model, got 'blocks9', which matches none",
        {"keep": ["block", "blocks9"]},
    ),
    "keep, of another type": (TypeError, "keep must hold paths of modules or classes of modules, got 3", {"keep": [3]}),
    "skip, the older name": (TypeError, "keep must hold paths of modules or classes of modules, got 3", {"skip": 3}),
    "calls": (TypeError, "calls must be True or False, got 'all'", {"calls": "all"}),
    "linear": (TypeError, "linear must be the share of rows that a sketch keeps, .* got 'few'", {"linear": "few"}),
    "linear, out of range": (ValueError, "linear must be above 0 and at most 1", {"linear": 2.0}),
}


@pytest.mark.parametrize(("error", "message", "options"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_refused_and_changes_nothing(error, message, options):
    model = Net() if options else F.gelu
    with pytest.raises(error, match=message):
        fewbit.convert(model, **options)
    if options:
        assert equal(step(model), step(Net()))
        assert type(model.block.act) is nn.SiLU
        fewbit.convert(model)


def test_errors_of_the_others():
    for function in (fewbit.restore_model, fewbit.summary):
        with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, got int"):
            function(3)
    with pytest.raises(ValueError, match=r"Block is not converted; call fewbit.convert\(model\) first"):
        fewbit.summary(Block())


def test_every_function_is_known_to_the_calls_or_has_no_name_in_torch():
    from integrations.fewbit.registry import CALLS

    known = {name.removesuffix("_") for name in CALLS.values()}
    assert set(FUNCTIONS) - known == {"gelu_tanh", "quick_gelu", "squared_relu"}
    assert known <= set(FUNCTIONS)


def test_no_bits_are_three_as_everywhere():
    model = fewbit.convert(Net(), bits=None)
    assert fewbit.summary(model).bits == model.block.act.bits == 3
    assert equal(step(model), step(fewbit.convert(Net())))
