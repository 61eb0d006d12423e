"""Smooth activations: torch's values, and for a derivative the level of the input's interval."""

import math

import pytest
import torch
import torch.nn.functional as F

from integrations import fewbit
from integrations.policies.codebooks.tables import table

from .fewbit_samples import DTYPES, SMOOTH, STRETCH, code_bytes, few_bits, get_gradient, name_of, normal, same_bits

every_function = pytest.mark.parametrize("name", SMOOTH)
WITH_PARAMETERS = [("celu", (1.3,)), ("elu", (0.7,)), ("softplus", (2.5, 3.0))]


def level_at(steps, x):
    """The level of each element's interval, in the dtype that the element is computed in."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    boundaries, levels = (torch.tensor(part, dtype=dtype) for part in (steps.boundaries, steps.levels))
    at = x.to(dtype).abs() if steps.even else x.to(dtype)
    return levels[torch.bucketize(at, boundaries, right=True)]


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@every_function
def test_values_are_torchs_and_gradients_are_levels(name, dtype):
    x, gradient = 3 * normal(4096, dtype=dtype), normal(4096, seed=1, dtype=dtype)
    output, slope = get_gradient(lambda x: few_bits(name)(x), x, gradient)
    assert same_bits(output, fewbit.FUNCTIONS[name].call(x))
    level = level_at(table(name, 3), x)
    assert same_bits(slope, (gradient.to(level.dtype) * level).to(dtype))


@pytest.mark.parametrize(("name", "parameters"), WITH_PARAMETERS)
def test_parameters_have_steps_of_their_own(name, parameters):
    x, gradient = 3 * normal(4096), normal(4096, seed=1)
    output, slope = get_gradient(lambda x: few_bits(name)(x, *parameters), x, gradient)
    assert same_bits(output, fewbit.FUNCTIONS[name].call(x, *parameters))
    assert same_bits(slope, gradient * level_at(table(name, 3, parameters), x))
    assert table(name, 3, parameters) != table(name, 3)


def largest_error(name, parameters=()):
    """Of 8 bits' steps, from -10 to 10, where they were fitted: the largest distance of the derivative from its level.

    Looked for at 2**16 points. Between two of them the derivative changes by at most their distance times the steepest
    second derivative, which is squared_relu's 2; jumps, those of hardswish and selu, are at points.
    """
    x = torch.linspace(-10, 10, 1 + (1 << 16), dtype=torch.float64, requires_grad=True)
    [slope] = torch.autograd.grad(fewbit.FUNCTIONS[name].call(x, *parameters).sum(), x)
    steps = level_at(table(name, 8, parameters), x.detach())
    return float((slope - steps).abs().max()) + 2 * 20 / (1 << 16)


@pytest.mark.parametrize(("name", "parameters"), [*((name, ()) for name in SMOOTH), *WITH_PARAMETERS])
def test_eight_bits_are_within_the_tables_error(name, parameters):
    x = 3 * normal(4096)
    x = x[x.abs() < 10]
    exact = get_gradient(lambda x: fewbit.FUNCTIONS[name].call(x, *parameters), x, torch.ones_like(x))[1]
    mine = get_gradient(lambda x: few_bits(name)(x, *parameters, bits=8), x, torch.ones_like(x))[1]
    bound = largest_error(name, parameters)
    # torch's gradient in float32: a handful of operations on numbers up to 20, the derivative of squared_relu.
    assert (mine - exact).abs().max() <= bound + 20 * 8 * torch.finfo(torch.float32).eps
    # 256 steps that were equally high over the derivative's range would be off by half a step; where the derivative
    # jumps, by half of the jump, and only there: an error of that size in the mean would be another function's table.
    assert (mine - exact).abs().mean() < (exact.max() - exact.min()) / 256


@pytest.mark.parametrize("bits", range(1, 9))
def test_each_width_saves_its_bits_and_the_guard(bits):
    for name in SMOOTH:
        n = 8 * STRETCH
        assert code_bytes(lambda x, name=name: few_bits(name)(x, bits=bits), normal(n)) == bits * n // 8 + 8


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@every_function
def test_nan_and_infinity_pass_forward_and_give_nan_gradients(name, bad):
    x = normal(3 * STRETCH)
    x[STRETCH + 5] = bad
    output, slope = get_gradient(lambda x: few_bits(name)(x), x, torch.ones_like(x))
    assert same_bits(output, fewbit.FUNCTIONS[name].call(x))
    assert slope[STRETCH : 2 * STRETCH].isnan().all()
    assert slope[:STRETCH].isfinite().all()
    assert slope[2 * STRETCH :].isfinite().all()


@pytest.mark.parametrize("name", ["celu", "elu", "hardswish", "mish", "selu", "silu"])
def test_in_place(name):
    x, gradient = normal(257), normal(257, seed=1)

    def mine(x):
        inner = x * 1
        output = few_bits(name)(inner, inplace=True)
        assert output.data_ptr() == inner.data_ptr()
        return output

    for got, expected in zip(get_gradient(mine, x, gradient), get_gradient(few_bits(name), x, gradient), strict=True):
        assert same_bits(got, expected)
    with pytest.raises(RuntimeError, match="leaf"):
        few_bits(name)(x.clone().requires_grad_(), inplace=True)
    with torch.no_grad():
        assert few_bits(name)(x, inplace=True) is x


def test_gelu_of_tanh_has_its_own_values():
    x = normal(100)
    assert same_bits(fewbit.functional.gelu(x.requires_grad_(), "tanh"), F.gelu(x, approximate="tanh"))


class TestSteps:
    """Where they come from."""

    x, gradient = 3 * normal(1000), normal(1000, seed=1)

    def slope(self, **options):
        return get_gradient(lambda x: fewbit.functional.gelu(x, **options), self.x, self.gradient)[1]

    def test_bits_none_is_three(self):
        assert torch.equal(self.slope(), self.slope(bits=3))
        assert not torch.equal(self.slope(), self.slope(bits=4))

    @pytest.mark.parametrize("kind", [tuple, list, torch.tensor])
    @pytest.mark.parametrize("ends", [False, True])
    def test_borders_and_values(self, kind, ends):
        borders = [-100.0, -1.0, 0.5, 100.0] if ends else [-1.0, 0.5]
        slope = self.slope(borders=kind(borders), values=kind([0.0, 0.25, 1.0]))
        expected = torch.tensor([0.0, 0.25, 1.0])[torch.bucketize(self.x, torch.tensor([-1.0, 0.5]), right=True)]
        assert torch.equal(slope, self.gradient * expected)

    def test_a_table_of_the_absolute_value(self):
        steps = fewbit.StepTable((1.0,), (0.5, 2.0), even=True)
        assert torch.equal(self.slope(table=steps), self.gradient * torch.where(self.x.abs() >= 1, 2.0, 0.5))

    def test_weight_chooses_other_steps(self):
        assert torch.equal(
            self.slope(weight="normal"), self.gradient * level_at(table("gelu", 3, (), "normal"), self.x)
        )

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"bits": 0}, ValueError, "bits must be from 1 to 8, or None for 3, got 0"),
            ({"bits": 9}, ValueError, "bits must be from 1 to 8, or None for 3, got 9"),
            ({"bits": True}, TypeError, "bits must be an int from 1 to 8, or None for 3, got True"),
            ({"bits": 3.0}, TypeError, "bits must be an int from 1 to 8, or None for 3, got 3.0"),
            ({"borders": (0.0,)}, ValueError, "borders and values must be given together, got borders alone"),
            ({"values": (0.0,)}, ValueError, "borders and values must be given together, got values alone"),
            (
                {"bits": 3, "borders": (0.0,), "values": (0.0, 1.0)},
                ValueError,
                "give one of them, got bits and borders",
            ),
            ({"borders": (0.0, 1.0), "values": (0.0, 1.0)}, ValueError, "got 2 borders and 2 levels"),
            ({"borders": (1.0, 0.0), "values": (0.0, 1.0, 2.0)}, ValueError, "boundaries must ascend"),
            ({"borders": (math.nan,), "values": (0.0, 1.0)}, ValueError, "must be finite"),
            ({"table": ((0.0,), (0.0, 1.0))}, TypeError, "table must be a StepTable or None, got tuple"),
            ({"rounding": "up"}, ValueError, "rounding must be 'nearest' or 'stochastic', got 'up'"),
            ({"weight": "mine"}, ValueError, "weight must be"),
            ({"approximate": "erf"}, ValueError, "approximate must be 'none' or 'tanh', got 'erf'"),
            ({"weight": torch.exp}, ValueError, "weight must be 'uniform' or 'normal', got"),
            ({"bitz": 3}, TypeError, "unknown keyword 'bitz'; besides torch's arguments, pass bits, borders, "),
            ({"stream": "a"}, TypeError, "stream must be an int, got 'a'"),
            ({"stream": None}, TypeError, "stream must be an int, got None"),
            ({"seed": 1.0}, TypeError, "seed must be an int or None, got 1.0"),
        ],
    )
    def test_bad_options(self, options, error, message):
        with pytest.raises(error, match=message):
            self.slope(**options)

    def test_stochastic_rounding_has_levels_of_its_own(self):
        with pytest.raises(ValueError, match="rounding='stochastic' chooses its own levels"):
            self.slope(rounding="stochastic", borders=(0.0,), values=(0.0, 1.0))


class TestStochasticRounding:
    def test_the_expected_gradient_is_exact(self):
        """A rounding has at most the standard deviation of half the widest step; a mean of 1024 of them a 32nd."""
        for name, parameters in [("gelu", ()), ("tanh", ()), ("elu", (0.5,)), ("mish", ())]:
            x = normal(64, dtype=torch.float64)
            copies = x.repeat(1024)
            mean = get_gradient(
                lambda x, name=name, parameters=parameters: few_bits(name)(
                    x, *parameters, bits=2, rounding="stochastic", seed=7
                ),
                copies,
                torch.ones_like(copies),
            )[1].view(1024, 64)
            levels = mean.unique()
            assert len(levels) <= 4
            exact = get_gradient(
                lambda x, name=name, parameters=parameters: fewbit.FUNCTIONS[name].call(x, *parameters),
                x,
                torch.ones_like(x),
            )[1]
            # 64 means of normal errors: 4.5 standard deviations are passed once in 2000 such tests.
            assert (mean.mean(0) - exact).abs().max() < 4.5 * float(levels.diff().max()) / 2 / 32

    def test_seed_and_stream_decide(self):
        x = normal(4096)

        def slope(**options):
            return get_gradient(
                lambda x: fewbit.functional.gelu(x, rounding="stochastic", **options), x, torch.ones_like(x)
            )[1]

        assert torch.equal(slope(seed=1), slope(seed=1))
        assert not torch.equal(slope(seed=1), slope(seed=2))
        assert not torch.equal(slope(seed=1), slope(seed=1, stream=1))
        assert not torch.equal(slope(), slope())
        torch.manual_seed(3)
        first = slope()
        torch.manual_seed(3)
        assert torch.equal(first, slope())

    def test_it_saves_the_same_bits(self):
        assert code_bytes(lambda x: fewbit.functional.silu(x, bits=4, rounding="stochastic"), normal(2048)) == 1024 + 2
