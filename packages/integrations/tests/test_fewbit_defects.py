"""Defects of FewBit's activations, by their numbers in the list that this package was written against (A6)."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from integrations import fewbit
from integrations.policies.codebooks.tables import table

from .fewbit_samples import PIECEWISE, SMOOTH, code_bytes, few_bits, get_gradient, normal, same_bits

functional = fewbit.functional


@pytest.mark.parametrize("name", SMOOTH)
def test_a6_1_every_function_computes_its_own_values_on_the_cpu(name):
    """All of them computed tanhshrink."""
    x = normal(512).requires_grad_()
    assert same_bits(few_bits(name)(x).detach(), fewbit.FUNCTIONS[name].call(x.detach()))


@pytest.mark.parametrize(("name", "parameters"), PIECEWISE)
def test_a6_2_piecewise_functions_run_on_the_cpu(name, parameters):
    x = normal(500).requires_grad_()
    few_bits(name)(x, *parameters).sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize(
    "name", ["ReLU", "LeakyReLU", "Hardsigmoid", "Hardtanh", "ReLU6", "Hardshrink", "Softshrink", "Softplus"]
)
def test_a6_3_piecewise_layers_and_softplus_can_be_built_and_run(name):
    for options in ({}, {"bits": None}, {"bits": 3}):
        getattr(fewbit, name)(**options)(normal(10).requires_grad_()).sum().backward()
    fewbit.Threshold(0.1, 0.5)(normal(10).requires_grad_()).sum().backward()
    assert fewbit.Softplus(beta=2.0, threshold=5.0).beta == 2.0


def test_a6_4_codes_are_packed_on_the_cpu():
    """They took a byte an element."""
    assert code_bytes(functional.gelu, normal(1 << 14)) == (1 << 14) * 3 // 8 + 16


class TestA65:
    def test_one_bit(self):
        x = normal(100)
        slope = get_gradient(lambda x: functional.gelu(x, bits=1), x, torch.ones(100))[1]
        assert set(slope.tolist()) == set(torch.tensor(table("gelu", 1).levels).tolist())

    def test_an_empty_tensor(self):
        x = torch.empty(0, 3, requires_grad=True)
        functional.gelu(x).sum().backward()
        assert x.grad.shape == (0, 3)

    def test_strided_inputs_and_gradients(self):
        x, gradient = 2 * normal(30, 20), normal(30, 20, seed=1)
        expected = get_gradient(functional.gelu, x, gradient)[1]
        for at in (x.t().contiguous().t(), torch.stack([x, x], -1)[..., 1]):
            for given in (gradient, gradient.t().contiguous().t(), torch.stack([gradient, gradient], 1)[:, 0]):
                leaf = at.detach().requires_grad_()
                assert torch.equal(torch.autograd.grad(functional.gelu(leaf), leaf, given)[0], expected)


def test_a6_6_there_is_no_switch_between_a_native_and_another_form(monkeypatch):
    """FEWBIT_NATIVE=0 made the import crash."""
    monkeypatch.setenv("FEWBIT_NATIVE", "0")
    assert code_bytes(functional.gelu, normal(2048)) == 3 * 256 + 2


def test_a6_7_the_example_of_the_readme():
    """With ``import fewbit`` and ``import torch as T`` in place of the imports here."""
    T = torch
    model = T.nn.Sequential(
        T.nn.Linear(8, 16),
        fewbit.GELU(bits=3),  # Use 3-bits GELU approximation.
        T.nn.Linear(16, 1),
    )
    model(normal(4, 8)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


class TestA68:
    def test_compile(self):
        torch._dynamo.reset()
        compiled = torch.compile(functional.mish, fullgraph=True, backend="aot_eager")
        x = normal(100)
        for got, expected in zip(
            get_gradient(compiled, x, torch.ones(100)), get_gradient(functional.mish, x, torch.ones(100)), strict=True
        ):
            assert torch.equal(got, expected)

    def test_vmap(self):
        x = normal(5, 64)
        assert torch.equal(torch.func.vmap(functional.silu)(x), functional.silu(x))
        slopes = torch.func.vmap(torch.func.grad(lambda x: functional.silu(x).sum()))(x)
        assert torch.equal(slopes, get_gradient(functional.silu, x, torch.ones_like(x))[1])

    @pytest.mark.parametrize("bits", [5, 6, 7, 8])
    def test_more_than_four_bits(self, bits):
        x = normal(100)
        assert get_gradient(lambda x: functional.selu(x, bits=bits), x, torch.ones(100))[1].isfinite().all()


class TestA610:
    @pytest.mark.parametrize("bits", range(1, 9))
    def test_three_bits_are_three(self, bits):
        """Each width took a bit more."""
        assert code_bytes(lambda x: functional.gelu(x, bits=bits), normal(8192)) == bits * 1024 + 8

    def test_no_code_is_beyond_the_levels(self):
        """Above the domain's end, and without an end beside the borders, codes had no level."""
        x = torch.tensor([99.0, 101.0, 1e30, torch.finfo(torch.float32).max])
        steps = table("gelu", 3)
        for options in ({}, {"borders": steps.boundaries, "values": steps.levels}):
            slope = get_gradient(lambda x, options=options: functional.gelu(x, **options), x, torch.ones(4))[1]
            assert torch.equal(slope, torch.full((4,), steps.levels[-1]))


class TestA611:
    """It worked in place."""

    def test_a_leaf(self):
        x = normal(10).requires_grad_()
        before = x.detach().clone()
        functional.gelu(x).sum().backward()
        assert torch.equal(x.detach(), before)

    def test_a_producer_that_saved_its_output(self):
        x = normal(10).requires_grad_()
        functional.gelu(x.sigmoid()).sum().backward()
        assert x.grad.isfinite().all()


class TestA612:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
    def test_other_dtypes(self, dtype):
        x = normal(50, dtype=dtype)
        output, slope = get_gradient(functional.gelu, x, torch.ones_like(x))
        assert same_bits(output, F.gelu(x))
        assert slope.dtype == dtype

    def test_autocast(self):
        layer = nn.Sequential(nn.Linear(8, 8), fewbit.GELU())
        with torch.autocast("cpu", torch.bfloat16):
            output = layer(normal(4, 8))
        output.sum().backward()
        assert output.dtype == torch.bfloat16
        assert layer[0].weight.grad.dtype == torch.float32

    def test_expanded_gradients(self):
        x = normal(100)
        at = x.clone().requires_grad_()
        functional.gelu(at).sum().backward()  # sum's gradient is one number, expanded
        assert torch.equal(at.grad, get_gradient(functional.gelu, x, torch.ones(100))[1])


def test_a6_13_relu6_from_six_on():
    """It was 1."""
    x = torch.tensor([5.5, 6.0, 6.5, 100.0, math.inf])
    output, slope = get_gradient(functional.relu6, x, torch.ones(5))
    assert output.tolist() == [5.5, 6.0, 6.0, 6.0, 6.0]
    assert slope.tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(("name", "parameters"), [("celu", (0.5,)), ("elu", (2.0,)), ("softplus", (3.0, 20.0))])
def test_a6_14_parameters_have_tables_of_their_own(name, parameters):
    """At 6 bits the gradient's squared error is below a tenth of that by the default parameters' table."""
    x = normal(4000)
    exact = get_gradient(lambda x: fewbit.FUNCTIONS[name].call(x, *parameters), x, torch.ones(4000))[1]
    own = get_gradient(lambda x: few_bits(name)(x, *parameters, bits=6), x, torch.ones(4000))[1]
    defaults = get_gradient(lambda x: few_bits(name)(x, *parameters, table=table(name, 6)), x, torch.ones(4000))[1]
    assert (own - exact).square().mean() < (defaults - exact).square().mean() / 10
