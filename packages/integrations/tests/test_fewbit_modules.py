"""The layers: torch's, with keywords beside torch's arguments; and those that the user defines."""

import copy
import inspect
import math
import pickle
import warnings

import pytest
import torch
from torch import nn

from integrations import fewbit
from integrations.fewbit.modules import gates, piecewise, smooth

from .fewbit_samples import code_bytes, get_gradient, normal, same_bits, saved_by

ARGUMENTS = {
    "CELU": {"alpha": 0.5, "inplace": True},
    "ELU": {"alpha": 0.5, "inplace": True},
    "GELU": {"approximate": "tanh"},
    "Hardtanh": {"min_val": -0.3, "max_val": 0.8, "inplace": True},
    "Hardshrink": {"lambd": 0.2},
    "LeakyReLU": {"negative_slope": 0.3, "inplace": True},
    "Softplus": {"beta": 2.0, "threshold": 4.0},
    "Softshrink": {"lambd": 0.2},
    "Threshold": {"threshold": 0.2, "value": -1.0, "inplace": True},
    **{name: {"inplace": True} for name in ("Hardswish", "Mish", "SELU", "SiLU", "Hardsigmoid", "ReLU", "ReLU6")},
}
PIECEWISE = ["ReLU", "LeakyReLU", "Threshold", "Hardsigmoid", "Hardtanh", "ReLU6", "Hardshrink", "Softshrink"]
SMOOTH = [
    *("CELU", "ELU", "GELU", "Hardswish", "LogSigmoid", "Mish", "SELU", "Sigmoid", "SiLU", "Softplus", "Softsign"),
    *("Tanh", "Tanhshrink"),
]
every_layer = pytest.mark.parametrize("name", PIECEWISE + SMOOTH)


def built(name, **options):
    return getattr(fewbit, name)(**ARGUMENTS.get(name, {}), **options)


@every_layer
def test_it_is_torchs_layer_with_its_values(name):
    torchs = getattr(nn, name)(**ARGUMENTS.get(name, {}))
    layer = built(name)
    assert isinstance(layer, type(torchs))
    x = normal(200)
    assert same_bits(layer(x.clone()), torchs(x.clone()))
    assert same_bits(layer(x.clone().requires_grad_() * 1), torchs(x.clone()))
    assert list(layer.state_dict()) == list(layer.parameters()) == list(layer.buffers()) == []


@every_layer
def test_its_signature_is_torchs_and_keywords(name):
    torchs, mine = inspect.signature(getattr(nn, name)), inspect.signature(getattr(fewbit, name))
    positional = [parameter for parameter in mine.parameters.values() if parameter.kind != parameter.KEYWORD_ONLY]
    named = [parameter for parameter in torchs.parameters.values() if parameter.kind == parameter.POSITIONAL_OR_KEYWORD]
    assert positional == named
    assert "bits" in mine.parameters
    with pytest.raises(TypeError):
        built(name, bitz=3)


@pytest.mark.parametrize("name", SMOOTH)
def test_bits_decide_what_is_saved(name):
    def saved(layer):
        return code_bytes(lambda x: layer(x * 1), normal(8192))

    assert saved(built(name)) == 3 * 1024 + 8
    assert saved(built(name, bits=5)) == 5 * 1024 + 8
    assert saved(built(name, table=fewbit.StepTable((0.0,), (0.0, 1.0)))) == 1024 + 8
    assert "bits=5" in repr(built(name, bits=5))


@pytest.mark.parametrize("name", PIECEWISE)
def test_piecewise_layers_take_bits_and_keep_one(name):
    assert code_bytes(lambda x: built(name, bits=4)(x * 1), normal(8192)) in (1024, 1032)
    assert repr(built(name, bits=4)) == repr(getattr(nn, name)(**ARGUMENTS.get(name, {})))


@every_layer
@pytest.mark.parametrize(("bits", "error"), [(0, ValueError), (9, ValueError), (2.0, TypeError), (True, TypeError)])
def test_bad_bits_are_refused_when_it_is_built(name, bits, error):
    with pytest.raises(error, match="bits must be"):
        built(name, bits=bits)


@every_layer
def test_in_eval_gradients_are_torchs(name):
    layer, torchs = built(name).eval(), getattr(nn, name)(**ARGUMENTS.get(name, {}))
    x = normal(200)
    for got, expected in zip(
        get_gradient(lambda x: layer(x * 1), x, torch.ones(200)),
        get_gradient(lambda x: torchs(x * 1), x, torch.ones(200)),
        strict=True,
    ):
        assert same_bits(got, expected)


@every_layer
def test_copies_and_pickles_are_alike(name):
    layer = built(name, bits=2)
    x = normal(100)
    expected = get_gradient(lambda x: layer(x * 1), x, torch.ones(100))[1]
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert repr(twin) == repr(layer)
        assert torch.equal(get_gradient(lambda x, twin=twin: twin(x * 1), x, torch.ones(100))[1], expected)


def test_layers_beyond_torchs():
    x = normal(100)
    assert same_bits(fewbit.QuickGELU(bits=2)(x), x * torch.sigmoid(1.702 * x))
    assert same_bits(fewbit.SquaredReLU().eval()(x), x.relu().square())
    assert repr(fewbit.QuickGELU()) == "QuickGELU(bits=3)"


def test_every_layer_and_function_is_exported():
    for module in (piecewise, smooth, gates):
        for name, value in vars(module).items():
            if isinstance(value, type) and value.__module__ == module.__name__ and name != "Gate":
                assert getattr(fewbit, name) is value
    for name in [*fewbit.FUNCTIONS, "glu", "swiglu", "geglu", "reglu", "activation", "stepwise"]:
        assert name == "gelu_tanh" or callable(getattr(fewbit.functional, name))


class TestActivation:
    """Any scalar function."""

    x = 2 * normal(2048)

    def test_nothing_of_the_callers_reaches_the_first_fit(self):
        """Hooks that give back other numbers, or functorch, would spoil steps that are kept for all later calls."""

        def wave(x):
            return x * torch.sin(x)

        def ripple(x):
            return x * torch.cos(x)

        with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, torch.zeros_like):
            fewbit.functional.activation(self.x.clone().requires_grad_(), wave, 4)
        torch.func.grad(lambda x: fewbit.functional.activation(x, ripple, 4).sum())(self.x)
        for function in (wave, ripple):
            table = fewbit.approximate(function, 4)
            mine, given = (
                get_gradient(
                    lambda x, function=function, options=options: fewbit.functional.activation(x, function, **options),
                    self.x,
                    torch.ones_like(self.x),
                )
                for options in ({"bits": 4}, {"table": table})
            )
            assert torch.equal(mine[1], given[1])

    def test_a_fitted_function_may_need_a_fit_itself(self):
        def inner(x):
            return fewbit.functional.elu(x, 0.6125, bits=8)

        y = fewbit.functional.activation(self.x.clone().requires_grad_(), inner, 4)
        assert torch.equal(y, torch.nn.functional.elu(self.x, 0.6125))

    def test_values_are_the_functions_and_gradients_levels(self):
        layer = fewbit.Activation(torch.sin, bits=4)
        output, slope = get_gradient(layer, self.x, torch.ones_like(self.x))
        assert same_bits(output, self.x.sin())
        assert len(slope.unique()) <= 16
        # cos from -10 to 10 over 16 levels: intervals of about 20 / 16, in which cos changes by no more than that.
        assert (slope - self.x.cos()).abs().max() < 20 / 16
        assert code_bytes(layer, self.x) == 1024 + 2
        assert torch.equal(
            get_gradient(lambda x: fewbit.functional.activation(x, torch.sin, 4), self.x, torch.ones_like(self.x))[1],
            slope,
        )

    def test_a_table_of_its_own(self):
        table = fewbit.approximate(torch.sin, 2, domain=(-1, 1))
        layer = fewbit.Activation(torch.sin, table=table)
        assert set(get_gradient(layer, self.x, torch.ones_like(self.x))[1].tolist()) <= set(
            torch.tensor(table.levels).tolist()
        )

    def test_stochastic_rounding_is_unbiased(self):
        """As in test_fewbit_smooth.py."""
        layer = fewbit.Activation(torch.sin, bits=3, rounding="stochastic")
        x = normal(64, dtype=torch.float64)
        slope = get_gradient(layer, x.repeat(1024), torch.ones(64 * 1024, dtype=torch.float64))[1].view(1024, 64)
        step = torch.tensor(layer.table.levels).diff().max()
        assert (slope.mean(0) - x.cos()).abs().max() < 4.5 * step / 2 / 32

    def test_in_eval_and_without_gradients_it_is_the_function(self):
        layer = fewbit.Activation(torch.sin).eval()
        assert same_bits(get_gradient(layer, self.x, torch.ones_like(self.x))[1], self.x.cos())
        assert same_bits(fewbit.Activation(torch.sin)(self.x), self.x.sin())

    def test_it_is_copied_and_pickled(self):
        layer = fewbit.Activation(torch.sin, 2)
        assert repr(pickle.loads(pickle.dumps(layer))) == repr(copy.deepcopy(layer)) == "Activation(sin, bits=2)"

    @pytest.mark.parametrize(
        ("build", "error", "message"),
        [
            (lambda: fewbit.Activation("sin"), TypeError, "function must be a torch function such as torch.sin"),
            (lambda: fewbit.Activation(torch.sin, bits=9), ValueError, "bits must be from 1 to 8"),
            (lambda: fewbit.Activation(lambda x: x.softmax(-1)), ValueError, "must map each element by itself"),
            (lambda: fewbit.Activation(lambda x: x - x.mean()), ValueError, "must map each element by itself"),
            (lambda: fewbit.GELU(weight="foo"), ValueError, "weight must be 'uniform' or 'normal', got 'foo'"),
            (lambda: fewbit.Activation(lambda x: x.sum()), ValueError, "must map a tensor to one of its shape"),
            (lambda: fewbit.Activation(torch.log), ValueError, "must be finite on the domain"),
            (
                lambda: fewbit.Activation(torch.sin, 3, table=fewbit.StepTable((), (1.0,))),
                ValueError,
                "bits and table each choose the steps",
            ),
            (
                lambda: fewbit.Activation(torch.sin, rounding="stochastic", table=fewbit.StepTable((), (1.0,))),
                TypeError,
                "table must be a LevelTable for rounding='stochastic'",
            ),
        ],
    )
    def test_bad_arguments(self, build, error, message):
        with pytest.raises(error, match=message):
            build()


class TestStepwise:
    """The function that has the steps for its derivative."""

    def test_it_is_the_integral_of_its_steps(self):
        layer = fewbit.Stepwise((-1.0, 0.5, 2.0), (0.25, -1.0, 0.0, 3.0))
        x = torch.tensor([-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0])
        output, slope = get_gradient(layer, x, torch.ones(8))
        assert output.tolist() == [0.5, 1.0, 0.5, 0.0, -0.5, -0.5, -0.5, 2.5]
        assert slope.tolist() == [0.25, -1.0, -1.0, -1.0, 0.0, 0.0, 3.0, 3.0]
        assert code_bytes(layer, normal(8192)) == 2048 + 8
        assert repr(layer) == "Stepwise(levels=4, bits=2)"

    def test_relu_and_hardtanh(self):
        x = torch.cat([normal(100), torch.tensor([math.inf, -math.inf, math.nan])])
        assert same_bits(fewbit.Stepwise((0.0,), (0.0, 1.0))(x), x.relu())
        clipped = fewbit.Stepwise((1.0,), (1.0, 0.0), parity=True)
        assert torch.equal(clipped(x).nan_to_num(9), x.clamp(-1, 1).nan_to_num(9))
        assert code_bytes(clipped, normal(8192)) == 1024 + 8

    def test_ends_of_the_domain_are_left_out(self):
        x = normal(100) * 3
        assert same_bits(
            fewbit.Stepwise(torch.tensor([-9.0, 0.0, 9.0]), torch.tensor([0.5, 1.0]))(x),
            fewbit.Stepwise((0.0,), (0.5, 1.0))(x),
        )

    def test_an_odd_derivative_about_a_shift(self):
        """As GELU's is about one half."""
        layer = fewbit.Stepwise((1.0,), (0.75, 1.0), parity=False, shift=0.5)
        slope = get_gradient(layer, torch.tensor([-2.0, -0.5, 0.5, 2.0]), torch.ones(4))[1]
        assert slope.tolist() == [0.0, 0.25, 0.75, 1.0]

    def test_its_gradient_is_exact(self):
        layer = fewbit.Stepwise((-0.7, 0.4), (0.5, -0.25, 2.0))
        for x in (normal(50, dtype=torch.float64), normal(50, seed=1, dtype=torch.float64)):
            assert torch.autograd.gradcheck(layer, x.requires_grad_())

    def test_in_half_precision_it_is_rounded_once(self):
        x = normal(100, dtype=torch.bfloat16)
        layer = fewbit.Stepwise((0.3,), (0.1, 1.0))
        assert same_bits(layer(x), layer(x.float()).bfloat16())

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (((0.0,), (1.0,)), "borders must be one fewer than the levels, or one more"),
            (((1.0, 0.0), (1.0, 2.0, 3.0)), "boundaries must ascend"),
            (((0.0,), (1.0, 2.0), True, 0.5), "shift needs an odd derivative"),
            (((-1.0,), (1.0, 2.0), False), "borders must not be negative with parity, got"),
            (((-1.0,), (1.0, 2.0), True), "must be at least 0"),
            ((range(256), range(257)), "levels must be at most 256"),
        ],
    )
    def test_bad_arguments(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            fewbit.Stepwise(*arguments)

    def test_it_saves_no_input(self):
        assert all(
            tensor.dtype == torch.uint8 or tensor.numel() <= 4
            for tensor in saved_by(fewbit.Stepwise((0.0,), (0.0, 1.0)), normal(100))
        )


def test_what_is_not_the_default_is_shown():
    assert repr(fewbit.SiLU(weight="normal")) == "SiLU(bits=3, weight='normal')"
    assert repr(fewbit.SiLU(table=fewbit.StepTable((0.0,), (0.0, 1.0)))) == "SiLU(bits=1, table=StepTable)"


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("layer", [fewbit.GELU(), nn.Sequential(fewbit.ReLU())])
def test_scripting_is_refused(layer):
    with pytest.raises(RuntimeError, match="does not support fewbit"):
        torch.jit.script(layer)


def test_compiling_steps_warns_of_nothing():
    torch.compiler.reset()
    x = torch.tensor([-1.0, 2.0], requires_grad=True)
    layer = fewbit.Stepwise((0.5,), (0.0, 3.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Of itself: torch.compile up to torch 2.11 makes one of each Function that it traces.
        warnings.filterwarnings("ignore", ".*Function'> should not be instantiated", DeprecationWarning)
        output = torch.compile(layer, backend="aot_eager", fullgraph=True)(x)
    assert torch.equal(output, layer(x))
