"""The gradient's error of layers that round by themselves is measured and monitored, whatever the level."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations
from integrations import fewbit, qmodules

from .nets import make_closure, normal, whole_gradient

X = normal(48, 64)


class Net(nn.Module):
    """Layers and a call that the options exchange, and a dropout behind them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.act, self.second = nn.Linear(64, 96), nn.SiLU(inplace=True), nn.Linear(96, 96)
        self.norm, self.drop, self.last = nn.BatchNorm1d(96), nn.Dropout(0.2), nn.Linear(96, 8)

    def forward(self, x):
        x = F.gelu(self.second(self.act(self.first(x))))
        return self.last(self.drop(self.norm(x)))


OPTIONS = {
    "q": {"layers": "q"},
    "q fixed": {"layers": "ActNN-L2"},
    "activations": {"activations": 2},
    "stochastic": {"activations": {"bits": 2, "rounding": "stochastic"}},
    "linear": {"linear": 0.5},
    "all": {"layers": "q", "activations": 3, "linear": {"proj_dim_ratio": 0.5, "seed": 1}},
}


@pytest.mark.filterwarnings("ignore:.*nothing is offloaded")
@pytest.mark.parametrize("level", ["L0", "swap", "L1.1"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_the_error_is_that_of_the_next_step(options, level):
    model = integrations.compress_model(Net(), level, **options)
    model.drop.p = 0.0  # a plain model does not draw what sketches draw in front of it
    torch.manual_seed(3)
    found = integrations.compression(model).gradient_error(make_closure(model))
    seeded = "seed" in str(options)  # such sketches draw from a counter of the process
    rounded, exact = (whole_gradient(model), whole_gradient(integrations.restore_model(model)))
    expected = ((rounded - exact).norm() / exact.norm()).item()
    assert found.relative > 1e-3
    assert found.relative == pytest.approx(expected, rel=0.7 if seeded else 1e-3)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_dropout_is_the_same_in_both_runs(options):
    """Otherwise the difference of two masks would count as the error of the layers."""
    model, masks = integrations.compress_model(Net(), "L0", **options), []
    model.drop.register_forward_hook(lambda layer, args, output: masks.append(output.detach() == 0))
    integrations.compression(model).gradient_error(make_closure(model))
    assert torch.equal(*masks)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_layers_are_monitored_at_a_level_that_is_off(options):
    ends = []
    for monitored in (False, True):
        model = integrations.compress_model(Net(), "L0", **options)
        handle = integrations.compression(model)
        if monitored:
            handle.monitor(make_closure(model), every=2, bound=1e-6)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            torch.manual_seed(1)
            for _ in range(5):
                make_closure(model)()
        said = [str(one.message) for one in told if "the bound is 1e-06" in str(one.message)]
        assert len(said) == monitored
        ends.append([value.clone() for value in model.state_dict().values()])
    assert handle.last_error.relative > 1e-3
    assert "above the bound" in " ".join(str(handle.report()).split())
    if "seed" not in str(options):
        assert all(map(torch.equal, *ends))


def test_layers_of_the_users_own_and_a_plan_that_rounds_nothing():
    model = nn.Sequential(qmodules.QLinear(64, 64), fewbit.GELU(), nn.Linear(64, 8))
    integrations.compress_model(model, "L0")
    assert integrations.compression(model).gradient_error(make_closure(model)).relative > 1e-3
    model = integrations.compress_model(Net(), memory=1.0, activations=3)
    handle = integrations.compression(model)
    handle.monitor(make_closure(model), every=2, bound=10.0)
    for _ in range(4):
        make_closure(model)()
    assert handle.last_error.relative > 1e-3


NOTHING = {
    "no layers": {},
    "ActNN's L0": {"layers": "ActNN-L0"},
    "in host memory": {"layers": {"level": "L2", "compress": False, "offload": True}},
    "piecewise": {"activations": {"functions": ["relu"]}},
}


@pytest.mark.parametrize("options", NOTHING.values(), ids=NOTHING.keys())
def test_where_nothing_rounds_it_says_so(options):
    model = integrations.compress_model(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1)), "L0", **options)
    handle = integrations.compression(model)
    with pytest.raises(ValueError, match="a monitored level must quantize, got L0, whose gradients are exact"):
        handle.monitor(lambda: None)
    with pytest.raises(ValueError, match="level must be one that compresses"):
        handle.gradient_error(make_closure(model))


def test_what_a_monitor_of_layers_cannot_do():
    model = integrations.compress_model(Net(), "L0", layers="q")
    handle = integrations.compression(model)
    with pytest.raises(ValueError, match="closure must be given at L0, where converted layers alone round"):
        handle.monitor()
    with pytest.raises(ValueError, match="raise_bits must be False at L0, which has no bits"):
        handle.monitor(make_closure(model), raise_bits=True)
    converted = integrations.compression(qmodules.QModule(Net(), "L2"))
    for call in (converted.monitor, converted.gradient_error):
        with pytest.raises(ValueError, match=r"only converted by QModule; call integrations.compress_model"):
            call(lambda: None)


def test_copies_keep_their_own_layers():
    model = integrations.compress_model(Net(), "L0", activations=3)
    other = copy.deepcopy(model)
    integrations.compression(model).gradient_error(make_closure(model))
    assert not any(calls.exact for calls in map(calls_of, (model, other)))


def calls_of(model):
    return model.__dict__["_fewbit_conversion"].calls
