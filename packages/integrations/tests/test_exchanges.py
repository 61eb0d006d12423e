"""``compress_model`` with layers exchanged: few-bit activations, sketched linear layers, Q-layers, and all at once."""

import copy
import itertools
import pickle
import warnings

import pytest
import torch
from torch import nn

import integrations
from integrations import fewbit, qmodules
from integrations.checkpoint import plan

from .nets import EIGHT_BITS, gradients, normal, relative_error

X = normal(32, 3, 16, 16)


def net():
    """One of each: convolutions, a norm, activations, a dropout that drops nothing, linear layers."""
    torch.manual_seed(0)
    first = nn.Conv2d(3, 16, 3, padding=1, bias=False)  # whose bias would have no gradient, for the norm
    return nn.Sequential(
        *(first, nn.BatchNorm2d(16), nn.GELU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(16 * 256, 64), nn.SiLU(), nn.Dropout(0.0), nn.Linear(64, 10)),
    )


def classes(model):
    return [type(module) for module in model]


OPTIONS = {"activations": "fewbit", "linear": "randomized", "layers": {"level": "L2"}, "checkpoint": "optimal"}
ALL = [chosen for count in range(5) for chosen in itertools.combinations(OPTIONS, count)]


@pytest.mark.parametrize("chosen", ALL, ids="+".join)
def test_every_combination_trains_and_is_undone(chosen):
    model = net()
    before, state = classes(model), {name: tensor.clone() for name, tensor in model.state_dict().items()}
    plain = gradients(copy.deepcopy(model), X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert integrations.compress_model(model, **{name: OPTIONS[name] for name in chosen}) is model
        assert list(model.state_dict()) == list(state)
        found = gradients(model, X)
    assert found.keys() == plain.keys()
    assert all(gradient.isfinite().all() for gradient in found.values())
    # With a fifth of the rows, a sketch's noise is about as large as the gradient itself; nothing else is.
    assert relative_error(plain, found) < (3 if "linear" in chosen else 0.5)
    assert not chosen or classes(model) != before or chosen == ("checkpoint",)
    assert integrations.restore_model(model) is model
    assert classes(model) == before
    assert "forward" not in model.__dict__
    model.load_state_dict(state)
    again = gradients(model, X)
    assert all(torch.equal(again[name], plain[name]) for name in plain)


def test_in_eight_bits_and_with_whole_sketches_the_gradient_is_nearly_exact():
    """Three sources round in 8 bits, hooks, Q-layers and steps; errors of independent sources add at most linearly."""
    plain = gradients(net(), X)
    options = {"activations": 8, "linear": 1.0, "layers": {"level": "L2", "bits": 8}}
    found = gradients(integrations.compress_model(net(), "L1.1", **options), X)
    assert 0 < relative_error(plain, found) < 3 * EIGHT_BITS


def test_what_each_option_exchanges():
    model = integrations.compress_model(net(), activations=2, linear={"proj_dim": 4, "matmul": "dct"}, layers="q")
    assert fewbit.summary(model).bits == 2
    assert [type(model[place]) for place in (2, 4, 7)] == [fewbit.GELU, fewbit.ReLU, fewbit.SiLU]
    assert model[6].sketching.proj_dim == 4
    assert qmodules.summary(model).level == qmodules.LEVELS["L3"]
    assert [type(model[place]).__name__ for place in (0, 1, 3, 8)] == ["QConv2d", "QBatchNorm2d", "QConv2d", "QDropout"]
    level = qmodules.QLevel(bits=(3,))
    model = integrations.compress_model(net(), layers=level)
    assert qmodules.summary(model).level == level
    assert type(model[6]) is qmodules.QLinear  # which no sketch was asked for


def test_the_report_says_what_was_exchanged():
    model = integrations.compress_model(net(), activations="fewbit", linear=0.5, layers="q")
    gradients(model, X)
    report = integrations.compression(model).report()
    words = "Exchanged: 3 activations in 3 bits, a sketch of its input in 2 linear layers, 4 Q-layers"
    assert words in report.caption
    assert integrations.Report.from_json(report.to_json()).exchanged == report.exchanged


def test_calls_count_as_activations():
    class Calls(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 64)

        def forward(self, x):
            return nn.functional.gelu(self.linear(x))

    model = integrations.compress_model(Calls(), activations="fewbit")
    gradients(model, normal(64, 64))
    assert "Exchanged: 1 activation in 3 bits" in integrations.compression(model).report().caption


def test_copies_and_pickles_are_undone_alone():
    model = integrations.compress_model(net(), activations="fewbit", linear=0.5, layers={"level": "L2"})
    gradients(model, X)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        gradients(copied, X)
        integrations.restore_model(copied)
        assert classes(copied) == classes(net())
        assert type(model[0]) is qmodules.QConv2d


def test_a_compiled_model_is_exchanged_inside():
    model = torch.compile(net(), backend="eager")
    integrations.compress_model(model, activations="fewbit", layers={"level": "L2"})
    gradients(model, X)
    assert type(model._orig_mod[0]) is qmodules.QConv2d
    integrations.restore_model(model)
    assert classes(model._orig_mod) == classes(net())


def test_at_a_level_that_is_off_only_the_exchanges_are_made():
    model = integrations.compress_model(net(), "L0", activations="fewbit")
    for _ in range(2):
        gradients(model, X)
    assert type(model[2]) is fewbit.GELU
    report = integrations.compression(model).report()  # of the first forward, which alone is looked at
    assert "Exchanged: 3 activations in 3 bits" in report.caption
    assert report.stored_bytes < report.original_bytes
    assert integrations.compression(model).step == 1
    integrations.restore_model(model)
    assert type(model[2]) is nn.GELU


WRONG = {
    "activations, name": ({"activations": "few"}, ValueError, "activations must be 'fewbit', bits from 1 to 8"),
    "activations, bits": ({"activations": 9}, ValueError, "activations must be 'fewbit' or bits from 1 to 8, got 9"),
    "activations, bool": ({"activations": True}, TypeError, "activations must be"),
    "activations, linear": (
        {"activations": {"linear": 0.1}},
        ValueError,
        "activations must not have the argument linear",
    ),
    "activations, argument": (
        {"activations": {"bits": 3, "colour": 1}},
        ValueError,
        "activations must have no keys but bits, functions, .*, got 'colour'",
    ),
    "linear, name": ({"linear": "random"}, ValueError, "linear must be 'randomized', a ratio in"),
    "linear, ratio": ({"linear": 0.0}, ValueError, "linear must be 'randomized' or a ratio in"),
    "linear, bool": ({"linear": True}, TypeError, "linear must be"),
    "linear, argument": ({"linear": {"proj_dim": 0}}, ValueError, "proj_dim"),
    "linear, unknown": (
        {"linear": {"proj_dims": 3}},
        ValueError,
        "linear must have no keys but proj_dim_ratio, proj_dim, .*, got 'proj_dims'",
    ),
    "linear, the layer's own": ({"linear": {"bias": False}}, ValueError, "linear must have no keys but .*, got 'bias'"),
    "activations, value": ({"activations": {"bits": 99}}, ValueError, "bits"),
    "layers, name": ({"layers": "L9"}, ValueError, "layers must be 'q', or one of ActNN's levels, ActNN-L0, ActNN-L1"),
    "layers, number": ({"layers": 2}, TypeError, "layers must be 'q'"),
    "layers, argument": (
        {"layers": {"level": "L3", "colour": 1}},
        ValueError,
        "layers must have no keys but level, compress, bits, .*, got 'colour'",
    ),
    "level": ({"level": "L9", "layers": "q"}, ValueError, "level"),
    "Q-layers and a plan": ({"layers": "q", "checkpoint": 0.5}, ValueError, "checkpoint must be None with Q-layers"),
    "Q-layers and a budget": (
        {"layers": "q", "memory": 0.5},
        ValueError,
        "memory must be None with Q-layers whose level .*, got 0.5: .* pass layers='ActNN-L2', .* or leave out memory=",
    ),
    "Q-layers and ways": (
        {"layers": "q", "stores": ("recompute",)},
        ValueError,
        r"stores must .*, got \('recompute',\)",
    ),
}


@pytest.mark.parametrize(("options", "kind", "words"), WRONG.values(), ids=WRONG.keys())
def test_what_makes_no_sense_is_refused_and_changes_nothing(options, kind, words):
    model = net()
    with pytest.raises(kind, match=words):
        integrations.compress_model(model, **options)
    assert classes(model) == classes(net())
    assert not {name for name in model.__dict__ if "integrations" in name or "fewbit" in name or name == "forward"}


def test_a_mapping_takes_the_older_name_of_keep():
    model = integrations.compress_model(net(), activations={"skip": ["2"]})
    assert type(model[2]) is nn.GELU


NOWHERE = {
    "linear": (nn.Conv2d(3, 3, 1), {"linear": 0.5}, "linear must be None for a Sequential"),
    "lazy": (nn.LazyLinear(3), {"linear": 0.5}, "no shapes yet"),
    "layers": (nn.Bilinear(3, 3, 3), {"layers": "q"}, "layers must be None for a Sequential"),
}


@pytest.mark.parametrize(("layer", "options", "words"), NOWHERE.values(), ids=NOWHERE.keys())
def test_an_option_that_applies_to_no_layer(layer, options, words):
    model = nn.Sequential(layer)
    with pytest.raises(ValueError, match=words):
        integrations.compress_model(model, activations="fewbit", **options)
    assert type(model[0]) is type(layer)
    assert not fewbit.is_converted(model)


class GateOfOneProduct(nn.Module):
    """As the experts of a mixture are: gate and value are halves of one memory, which the product keeps whole."""

    def __init__(self):
        super().__init__()
        self.both, self.act, self.down = nn.Linear(64, 128, bias=False), nn.SiLU(), nn.Linear(64, 64, bias=False)

    def forward(self, x):
        gate, value = self.both(x).chunk(2, dim=-1)
        return self.down(self.act(gate) * value)


def test_a_level_of_the_layers_is_not_taken_for_the_models():
    named = integrations.compress_model(net(), layers="ActNN-L2")
    with pytest.warns(DeprecationWarning, match="layers='L2' means ActNN's level L2, .*; write layers='ActNN-L2'"):
        model = integrations.compress_model(net(), layers="L2")
    assert qmodules.summary(model).level == qmodules.summary(named).level == qmodules.LEVELS["L2"]


def test_layers_that_keep_more_than_torchs_own_say_so():
    """A gate of which torch saves the other half was stored in 3 bits beside it, without a word."""
    torch.manual_seed(0)
    model = integrations.compress_model(GateOfOneProduct(), "L0", activations="fewbit")
    with pytest.warns(UserWarning, match=r"nothing is stored in fewer bytes: 64\.0 KiB before and 6"):
        gradients(model, normal(64, 64))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradients(model, normal(64, 64))  # once
    report = integrations.compression(model).report()
    assert report.stored_bytes > report.original_bytes

    model = integrations.compress_model(GateOfOneProduct(), "L0", activations="fewbit", strict=True)
    with pytest.raises(
        RuntimeError,
        match=r"Pass a level that also compresses these tensors, such as 'L1', .* this "
        r"is a warning$",
    ):
        gradients(model, normal(64, 64))

    model = integrations.compress_model(GateOfOneProduct(), "L1", activations="fewbit")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradients(model, normal(64, 64))
    report = integrations.compression(model).report()
    assert report.ratio > 4


@pytest.mark.parametrize("level", ["L0", "L1"])
def test_activations_that_are_not_there_are_told_by_the_first_forward(level):
    words = r"called no activation that has a few-bit form \(.*sigmoid.*\)"
    model = integrations.compress_model(nn.Sequential(nn.Conv2d(3, 3, 1), nn.Sigmoid()), level, activations="fewbit")
    with pytest.warns(UserWarning, match=words):
        model(X)
    integrations.restore_model(model)
    integrations.compress_model(model, level, activations="fewbit", strict=True)
    with pytest.raises(RuntimeError, match=words):
        model(X)


def test_at_a_level_that_quantises_sketches_have_its_bits():
    bits = {
        level: integrations.compress_model(net(), level, linear=0.5)[6].sketching.bits for level in ("L0", "L1", "L1.1")
    }
    assert bits == {"L0": None, "L1": 4, "L1.1": 8}
    assert integrations.compress_model(net(), linear={"proj_dim": 4, "bits": None})[6].sketching.bits is None
    stored = []
    for linear in (None, 0.2):
        model = integrations.compress_model(nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 8)), linear=linear)
        gradients(model, normal(512, 256).requires_grad_())
        stored.append(integrations.compression(model).report().stored_bytes)
    # A fifth of the rows in as many bits; but the first layer's input, which is the caller's, has a sketch, too.
    assert stored[1] < stored[0] / 2


def test_what_is_kept_is_not_exchanged():
    model = integrations.compress_model(net(), activations="fewbit", linear=0.5, keep=("2", "6"))
    assert [type(model[place]) for place in (2, 4, 6, 9)] == [nn.GELU, fewbit.ReLU, nn.Linear, fewbit.RandomizedLinear]
    with pytest.raises(ValueError, match="keep must not name layers that layers= converts, got '0', a Conv2d"):
        integrations.compress_model(net(), layers={"level": "L2"}, keep="0")


def test_a_restore_that_is_refused_changes_nothing():
    model = integrations.compress_model(net(), activations="fewbit", layers={"level": "L2"})
    nn.utils.parametrizations.weight_norm(model[0])
    with pytest.raises(ValueError, match="remove_parametrizations"):
        integrations.restore_model(model)
    assert integrations.compression(model).step == 0
    nn.utils.parametrize.remove_parametrizations(model[0], "weight")
    integrations.restore_model(model)
    assert classes(model) == classes(net())


def test_a_model_that_is_such_a_layer_itself():
    layer = nn.GELU()
    with pytest.raises(ValueError, match=r"must contain the layers.*nn.Sequential\(model\)"):
        integrations.compress_model(layer, activations="fewbit")
    assert type(layer) is nn.GELU
    assert not fewbit.is_converted(layer)


def test_a_model_that_is_converted_already():
    for convert in (fewbit.convert, qmodules.QModule):
        model = convert(net())
        before = classes(model)
        with pytest.raises(ValueError, match="converted already"):
            integrations.compress_model(model, activations="fewbit", layers={"level": "L2"})
        assert classes(model) == before
        assert (fewbit if convert is fewbit.convert else qmodules).is_converted(model)
        integrations.compress_model(model)
        integrations.restore_model(model)
        assert classes(model) == before  # which was not made here


def test_planning_leaves_the_noise_of_q_layers_as_it_is():
    """What a plan looks at is no step: the first forward after it draws what it would have drawn."""
    found = []
    for look in (False, True):
        model = qmodules.QModule(net(), level="L2")
        if look:
            plan(model, (X,))
        found.append(gradients(model, X))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
