"""Functions with stepwise derivatives."""

import math
import re

import pytest
import torch

import actcore
from actcore import reference
from actcore.reference.stepwise import FUNCTIONS

from .fused_samples import levels_for
from .samples import BITS, DTYPES, NUMELS, name_of, normal, same_bits

ops = torch.ops.actcore
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
every_width = pytest.mark.parametrize("bits", BITS)
PARAMETERS = {
    "leaky_relu": [0.2],
    "threshold": [0.1, -0.7],
    "hardtanh": [-0.3, 1.7],
    "hardshrink": [0.3],
    "softshrink": [0.75],  # exact in every dtype: torch rounded it to the dtype of x once, and does not any more
    "celu": [1.3],
    "elu": [0.7],
    "softplus": [2.5, 3.0],
}


def samples(dtype):
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-3, -1e-3, 2.0, -2.0, 50.0, -50.0])
    return torch.cat([special, 3 * normal(64 * 400 - 11, torch.float64)]).to(dtype)


@every_dtype
@pytest.mark.parametrize("function", FUNCTIONS)
def test_values_are_torchs_bit_for_bit(function, dtype):
    """On one thread: with several, torch computes the last elements of each share with other instructions."""
    x = samples(dtype)
    boundaries, _ = levels_for(3, dtype)
    for parameters in ([], PARAMETERS.get(function, [])):
        output, codes = ops.stepwise(x, function, parameters, boundaries, 3)
        expected = FUNCTIONS[function](x, *parameters)
        if function == "softplus":
            # exp and log1p from other libraries than inside torch's softplus: each within 1 ulp of the truth in both,
            # and log1p(exp(x)) is at most as far off, relatively, as its argument: 4 ulps, 4 eps.
            eps = 4 * torch.finfo(dtype).eps
            torch.testing.assert_close(output, expected, rtol=eps, atol=0, equal_nan=True)
            output = actcore.stepwise(x, function, boundaries, torch.ones(8), parameters=parameters)
        assert same_bits(output, expected)
        assert torch.equal(codes, reference.stepwise_codes(x, boundaries, 3))


@pytest.mark.parametrize("function", sorted(set(FUNCTIONS) - {"elu", "celu", "selu", "softplus"}))
def test_values_of_every_length(function):
    boundaries, _ = levels_for(3)
    for numel in NUMELS:
        x = normal(numel)
        expected = FUNCTIONS[function](x)
        if function == "softshrink":
            expected += 0.0  # torch's last zeros have the sign of x, unlike those before
        assert same_bits(ops.stepwise(x, function, [], boundaries, 3)[0], expected)


@pytest.mark.parametrize("function", ["elu", "celu", "selu"])
def test_the_last_elements_of_the_elu_family(function):
    """There torch takes expm1 of another library. Each is within an ulp of the truth, and so is each of at most two
    products that follow: relatively 2 * (1 + 2) * eps at the most."""
    boundaries, _ = levels_for(3)
    for numel in NUMELS:
        x = normal(numel)
        output, _ = ops.stepwise(x, function, [], boundaries, 3)
        torch.testing.assert_close(output, FUNCTIONS[function](x), rtol=6 * torch.finfo(x.dtype).eps, atol=0)


@pytest.mark.parametrize("numel", [20_001, 30_011, 100_003])  # torch starts threads from 16,384 elements on
def test_threads_change_nothing(set_threads, numel):
    x = normal(numel)
    boundaries, _ = levels_for(3)
    for function in ("gelu", "gelu_tanh", "elu", "logsigmoid", "relu"):
        set_threads(1)
        expected = ops.stepwise(x, function, [], boundaries, 3)
        set_threads(3)
        for got, one in zip(ops.stepwise(x, function, [], boundaries, 3), expected, strict=True):
            assert same_bits(got, one)


@every_dtype
@every_width
def test_codes_and_backward_are_the_reference(dtype, bits):
    for missing in {0, min(1, 2**bits - 2), 2**bits - 1, 2 ** (bits - 1) - 1}:
        boundaries, levels = levels_for(bits, dtype, missing=missing)
        for numel in NUMELS:
            x = 1.5 * normal(numel, dtype)
            if numel > 40:
                x[:4] = torch.tensor([math.nan, math.inf, -math.inf, -0.0])
                x[4 : 4 + min(30, len(boundaries))] = boundaries[:30].to(dtype)
            codes = ops.stepwise_codes(x, boundaries, bits)
            assert torch.equal(codes, reference.stepwise_codes(x, boundaries, bits))
            gradient = normal(numel, dtype, seed=2)
            got = ops.stepwise_backward(gradient, codes, levels, bits)
            assert same_bits(got, reference.stepwise_backward(gradient, codes, levels, bits))


def test_nan_is_in_the_last_interval():
    codes = ops.stepwise_codes(torch.tensor([math.nan, math.inf, -math.inf]), torch.tensor([0.0, 1.0]), 2)
    assert actcore.unpack_bits(codes, 2, 3).tolist() == [2, 2, 0]


def test_codes_without_a_level_give_nan():
    """Damaged codes are seen, and nothing is read beyond the table."""
    codes, _ = ops.pack_bits(torch.full((100,), 7, dtype=torch.uint8), 3)
    assert ops.stepwise_backward(torch.ones(100), codes, torch.ones(5), 3).isnan().all()


@every_width
def test_gradient_is_the_gradient_times_the_level(bits):
    boundaries, levels = levels_for(bits)
    x = normal(1001).requires_grad_()
    output = actcore.stepwise(x, "gelu", boundaries, levels)
    gradient = normal(1001, seed=3)
    output.backward(gradient)
    assert torch.equal(x.grad, gradient * levels[torch.bucketize(x.detach(), boundaries, right=True)])


def test_exact_derivatives_of_one_bit_are_torchs():
    """Where the derivative is a step, one bit is exact."""
    x = normal(1000)
    for function, boundary, levels in (("relu", 0.0, (0, 1)), ("leaky_relu", 0.0, (0.01, 1))):
        mine, torchs = x.clone().requires_grad_(), x.clone().requires_grad_()
        actcore.stepwise(mine, function, [boundary], levels).sum().backward()
        FUNCTIONS[function](torchs).sum().backward()
        assert torch.equal(mine.grad, torchs.grad)


def test_only_codes_and_levels_are_saved():
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        actcore.stepwise(normal(1001).requires_grad_(), "gelu", *levels_for(3))
    assert [(tensor.dtype, tensor.numel()) for tensor in saved] == [(torch.uint8, 376), (torch.float32, 8)]


TABLES = {dtype: levels_for(3, dtype) for dtype in (torch.float32, torch.float64)}


def layer(x):
    return actcore.stepwise(x, "gelu", *TABLES[x.dtype])


def test_memory_orders():
    x = normal(2 * 3 * 5 * 7).view(2, 3, 5, 7)
    for case in (
        x.contiguous(memory_format=torch.channels_last),
        x.transpose(1, 3),
        x[:, :, 1:4],
        normal(7).expand(3, 7),
    ):
        case = case.detach().requires_grad_()
        gradient = normal(case.numel(), seed=4).view(case.shape)
        (got,) = torch.autograd.grad(layer(case), case, gradient)
        same = case.detach().contiguous().requires_grad_()
        (expected,) = torch.autograd.grad(layer(same), same, gradient)
        assert torch.equal(got, expected)


def test_derivatives_and_transforms():
    x = normal(35, torch.float64).view(5, 7)
    weights = normal(35, torch.float64, seed=1).view(5, 7)
    boundaries, levels = levels_for(3, torch.float64)
    level = levels[torch.bucketize(x, boundaries, right=True)]

    def total(x):
        return (layer(x) * weights).sum()

    assert torch.equal(torch.func.grad(total)(x), weights * level)
    each = torch.func.vmap(torch.func.grad(lambda x: layer(x).sum()))
    assert torch.equal(each(x), level)
    assert torch.equal(each(x.t()[:, :3].contiguous().t().contiguous()), level[:3])


def test_second_derivatives():
    """Those of a piecewise linear function are all there; of a curved one a term would miss, and no graph hides it."""
    x = normal(35, torch.float64)
    leaf, gradient = x.clone().requires_grad_(), normal(35, torch.float64, seed=1).requires_grad_()
    output = actcore.stepwise(leaf, "leaky_relu", (0.0,), (0.1, 1.0), parameters=(0.1,))
    (first,) = torch.autograd.grad(output, leaf, gradient, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), gradient)
    assert torch.equal(second, torch.where(x < 0, x.new_tensor(0.1), x.new_tensor(1.0)))

    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(layer(leaf), leaf, gradient, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.func.grad(lambda x: torch.func.grad(lambda x: layer(x).square().sum())(x).sum())(x)


def test_compiled():
    for x in (normal(130).view(13, 10), normal(96).view(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)):
        torch.compiler.reset()
        mine, compiled = x.clone().requires_grad_(), x.clone().requires_grad_()
        (layer(mine) * x).sum().backward()
        torch.compile(lambda y, x=x: (layer(y) * x).sum(), fullgraph=True, backend="aot_eager")(compiled).backward()
        assert torch.equal(mine.grad, compiled.grad)


@every_dtype
def test_opcheck(dtype):
    x = normal(35, dtype).view(5, 7)
    boundaries, levels = levels_for(3, dtype)
    codes = ops.stepwise_codes(x, boundaries, 3)
    torch.library.opcheck(ops.stepwise.default, (x, "elu", [0.5], boundaries, 3))
    torch.library.opcheck(ops.stepwise_codes.default, (x, boundaries, 3))
    torch.library.opcheck(ops.stepwise_backward.default, (x, codes, levels, 3))
    torch.library.opcheck(ops.stepwise_backward.default, (x.clone().requires_grad_(), codes, levels, 3))


def test_the_raw_operator_has_no_gradient():
    output, _ = ops.stepwise(normal(10).requires_grad_(), "gelu", [], torch.zeros(1), 1)
    with pytest.raises(RuntimeError, match=r"actcore::stepwise has no gradient.*actcore.stepwise"):
        output.sum().backward()


F32, B7, L8 = torch.zeros(100), torch.arange(7.0), torch.zeros(8)
CODES = torch.zeros(38, dtype=torch.uint8)
WRONG = [
    ("stepwise", (F32, "gelou", [], B7, 3), "function must be one of relu, leaky_relu, "),
    (
        "stepwise",
        (F32, "elu", [1.0, 2.0], B7, 3),
        "parameters of elu must be 1 numbers, or none for its defaults, got 2",
    ),
    ("stepwise", (F32, "gelu", [], B7, 2), "boundaries must be at most 2**bits - 1 = 3, got 7; use more bits"),
    ("stepwise", (F32, "gelu", [], B7, 9), "bits must be from 1 to 8, got 9"),
    ("stepwise", (F32, "gelu", [], B7.flip(0), 3), "boundaries must ascend and not be NaN; sort them"),
    ("stepwise_codes", (F32, torch.tensor([0.0, math.nan]), 3), "boundaries must ascend and not be NaN; sort them"),
    ("stepwise_codes", (F32, B7.double(), 3), "boundaries must be float32 for elements of at most 32 bits"),
    ("stepwise_codes", (F32.double(), B7, 3), "boundaries must be float64 for elements of float64; cast with .to()"),
    ("stepwise_codes", (F32, B7.view(1, 7), 3), "boundaries must have one dimension, got 2"),
    ("stepwise_codes", (F32[::2], B7, 3), "input must be contiguous; call .contiguous() first"),
    ("stepwise_backward", (F32, CODES[1:], L8, 3), "codes must hold 38 bytes, got 37"),
    ("stepwise_backward", (F32, CODES, torch.zeros(9), 3), "levels must be from 1 to 2**bits = 8, got 9"),
    ("stepwise_backward", (F32, CODES, torch.zeros(0), 3), "levels must be from 1 to 2**bits = 8, got 0"),
]


@pytest.mark.parametrize(("operator", "arguments", "text"), WRONG, ids=range(len(WRONG)))
def test_wrong_arguments(operator, arguments, text):
    with pytest.raises(RuntimeError, match=re.escape(f"actcore::{operator}: {text}")):
        getattr(ops, operator)(*arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("nope", B7, L8), ValueError, "function must be one of relu, leaky_relu"),
        (("gelu", B7.flip(0), L8), ValueError, "boundaries must ascend and not be NaN; sort them"),
        (
            ("elu", B7, L8, 3, [1.0, 2.0]),
            ValueError,
            "parameters of elu must be 1 numbers, or none for its defaults, got 2",
        ),
        ((3, B7, L8), TypeError, "function must be a name such as 'gelu', or callable, got 3"),
    ],
)
def test_wrong_functions(arguments, error, text):
    with pytest.raises(error, match=re.escape(text)):
        actcore.stepwise(F32, *arguments)


def test_wrong_tables():
    with pytest.raises(ValueError, match=r"levels must have one entry more .* got shapes \(7,\) and \(7,\)"):
        actcore.stepwise(F32, "gelu", B7, B7)
    with pytest.raises(ValueError, match="must not require gradients"):
        actcore.stepwise(F32, "gelu", B7, L8.clone().requires_grad_())
    with pytest.raises(ValueError, match="got 7 and bits=2"):
        actcore.stepwise(F32, "gelu", B7, L8, bits=2)
    with pytest.raises(ValueError, match="levels must be the same for the whole batch of vmap"):
        torch.func.vmap(lambda x, levels: actcore.stepwise(x, "gelu", B7, levels))(F32.view(10, 10), torch.zeros(10, 8))
