"""Derivatives rounded to levels at random."""

import math

import pytest
import torch

import actcore
from actcore import reference
from actcore.fused.guards import GUARDS, STRETCH
from actcore.pointwise import DERIVATIVES, FUNCTIONS, PARAMETERS

from .samples import BITS, DTYPES, name_of, normal, same_bits

ops = torch.ops.actcore
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
LEVELS = (-0.15, 0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.15)


def table(count, dtype=torch.float32):
    """Ascending levels, two of them equal where there are many."""
    levels = normal(count, torch.float64 if dtype == torch.float64 else torch.float32, seed=1).sort().values
    if count > 4:
        levels[2] = levels[1]
    return levels


@every_dtype
@pytest.mark.parametrize("bits", BITS)
def test_codes_are_the_reference(dtype, bits):
    for count in {2, min(3, 2**bits), 2**bits}:
        levels = table(count, dtype)
        for numel in (0, 1, 9, 1023, 1025):
            slope, x = normal(numel, dtype), normal(numel, dtype, seed=2)
            if numel > 40:
                slope[:4] = torch.tensor([math.nan, math.inf, -math.inf, -0.0])
                slope[4 : 4 + min(30, count)] = levels[:30].to(dtype)
                x[7] = math.inf
            for guard in GUARDS:
                arguments = (slope, x, levels, bits, 2**60, -5, torch.tensor([-7]), guard)
                assert torch.equal(ops.level_codes(*arguments), reference.level_codes(*arguments))


def gradients(x, samples, **options):
    """The gradients of sums, one for each seed: ``(samples, numel)``."""
    rounded = []
    for seed in range(samples):
        leaf = x.clone().requires_grad_()
        actcore.round_to_levels(leaf, "gelu", LEVELS, seed=seed, **options).sum().backward()
        rounded.append(leaf.grad)
    return torch.stack(rounded)


@every_dtype
def test_the_expected_level_is_the_derivative(dtype):
    """Each level is one of the two around the derivative, and the mean is the derivative.

    On the way p between two levels of a distance w, the mean of n samples has the standard error
    s = w sqrt(p (1 - p) / n). Near a level the mean is far from normal, so Bernstein's inequality bounds the error: by
    sqrt(2 u) s + 2 u w / (3 n) with the odds 2 exp(-u); u = 15.1 gives the odds of 5 standard errors, 1 in 1.7 million,
    and 5.5 s + 10.1 w / n. The noise adds 2**-17 w.
    """
    x = torch.linspace(-4, 4, 64, dtype=torch.float64).to(dtype)
    slope = torch.func.grad(lambda x: torch.nn.functional.gelu(x).sum())(x).double()
    levels = torch.tensor(LEVELS, dtype=torch.float64 if dtype == torch.float64 else torch.float32).double()
    # A level times a gradient of 1 is rounded to the dtype: compare with the rounded levels' interpolation.
    below = torch.bucketize(slope, levels[1:-1], right=True)
    width = levels.diff()[below]
    way = (slope - levels[below]) / width
    shown = levels.to(dtype).double()
    expected = shown[below] + way * shown.diff()[below]
    samples = 1024
    got = gradients(x, samples).double()
    assert ((got == shown[below]) | (got == shown[below + 1])).all()
    width = shown.diff()[below]
    tolerance = width * (5.5 * (way * (1 - way) / samples).sqrt() + 10.1 / samples + 2**-17)
    assert ((got.mean(0) - expected).abs() <= tolerance).all()


def test_the_mean_over_many_elements_is_unbiased():
    """One derivative, 2^22 draws: 5 standard errors are 0.06 % of the distance between levels, 40 times what the
    noise's 2^-17 may add."""
    slope = torch.full((2**22,), 0.37)
    levels = torch.tensor([0.2, 0.4])
    codes = ops.level_codes(slope, slope, levels, 1, 1, 2)
    up = actcore.unpack_bits(codes, 1, slope.numel()).double().mean().item()
    way = (0.37 - 0.2) / 0.2
    # float32 holds the levels and the derivative to 2^-24 each, a change of the way below 1e-6
    assert abs(up - way) <= 5 * math.sqrt(way * (1 - way) / 2**22) + 2**-17 + 1e-6


def test_beyond_the_levels_is_the_end_level():
    slope = torch.tensor([-9.0, -1.0, 0.0, 1.0, 9.0, math.inf, -math.inf])
    codes = ops.level_codes(slope, slope, torch.tensor([-1.0, 0.0, 1.0]), 2, 1, 2)
    assert actcore.unpack_bits(codes, 2, 7).tolist() == [0, 0, 1, 2, 2, 2, 0]


@every_dtype
@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_function(function, dtype):
    """The value is torch's, and the level one of the two around torch's derivative."""
    x = (2 * normal(500, dtype)).requires_grad_()
    for parameters in ([], [0.75, 1.25][: PARAMETERS.get(function, 0)]):
        expected = FUNCTIONS[function](x, *parameters)
        (slope,) = torch.autograd.grad(expected.sum(), x)
        levels = torch.linspace(-2, 12, 29, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
        output = actcore.round_to_levels(x, function, levels, parameters=parameters)
        assert same_bits(output.detach(), expected.detach())
        (got,) = torch.autograd.grad(output.sum(), x)
        # levels are half apart, and what a 16-bit dtype shows of one is off by half its eps, of levels up to 12
        assert ((got.double() - slope.double()).abs() <= 0.5 + 8 * torch.finfo(dtype).eps).all()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_derivatives_are_autograds(function):
    """In float64, at some 10 roundings of half an eps each, of terms up to 12 times 1.7."""
    x = (2 * normal(2000, torch.float64)).requires_grad_()
    for parameters in ([], [0.75, 1.25][: PARAMETERS.get(function, 0)]):
        (expected,) = torch.autograd.grad(FUNCTIONS[function](x, *parameters).sum(), x)
        got = DERIVATIVES[function](x.detach(), *parameters)
        torch.testing.assert_close(got, expected, rtol=0, atol=5 * 20 * torch.finfo(torch.float64).eps)


def wave(x, frequency=2.0):
    return torch.sin(frequency * x)


def test_functions_of_ones_own():
    x = normal(1000)
    levels = torch.linspace(-3, 3, 8)
    by_torch, by_hand, named = (x.clone().requires_grad_() for _ in range(3))
    options = {"parameters": [3.0], "seed": 5}
    actcore.round_to_levels(by_torch, wave, levels, **options).sum().backward()
    actcore.round_to_levels(
        by_hand, wave, levels, derivative=lambda x, f: f * torch.cos(f * x), **options
    ).sum().backward()
    # torch's backward computes the same product, in the other order
    assert torch.equal(by_torch.grad, by_hand.grad)
    actcore.round_to_levels(named, "tanh", levels, seed=5, derivative=lambda x: 0 * x).sum().backward()
    assert set(named.grad.tolist()) <= set(levels[3:5].tolist())


@every_dtype
@pytest.mark.parametrize("guard", GUARDS)
def test_nan_and_infinity(dtype, guard):
    """Of x and of the derivative: sigmoid's is 0 at infinity."""
    for numel in (1, 1023, 1025, 40_000):
        for strange in (math.nan, math.inf, -math.inf):
            x = normal(numel, dtype)
            x[-1] = strange
            leaf = x.clone().requires_grad_()
            output = actcore.round_to_levels(leaf, "sigmoid", [0.0, 0.1, 0.2, 0.3], guard=guard)
            assert same_bits(output.detach(), torch.sigmoid(x))
            output.sum().backward()
            expected = torch.zeros(numel, dtype=torch.bool)
            if guard == "nonfinite" or (guard == "nan" and strange != strange):
                expected[(numel - 1) // STRETCH * STRETCH :] = True
            assert torch.equal(leaf.grad.isnan(), expected)
    leaf = torch.tensor([-1.0, 1.0], dtype=dtype, requires_grad=True)
    actcore.round_to_levels(leaf, torch.sqrt, [0.0, 1.0], guard="nan").sum().backward()
    assert leaf.grad.isnan().all()


def test_what_is_saved():
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        output = actcore.round_to_levels(normal(3001).requires_grad_(), "gelu", LEVELS)
    assert [(tensor.dtype, tensor.numel()) for tensor in saved] == [(torch.uint8, 1126 + 3), (torch.float32, 8)]
    assert output.grad_fn is not None


def test_without_gradients_nothing_is_computed_but_the_value():
    state = torch.get_rng_state()
    for without in (torch.no_grad, torch.inference_mode):
        with without():
            x = normal(100)
            assert torch.equal(actcore.round_to_levels(x, "gelu", LEVELS), torch.nn.functional.gelu(x))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_function_without_a_derivative():
    for function in (torch.zeros_like, lambda x: x.detach().sin(), torch.sign, lambda x: x):
        x = normal(100).requires_grad_()
        output = actcore.round_to_levels(x, function, [0.0, 1.0], seed=1)
        output.sum().backward()
        assert torch.equal(output.detach(), function(x).detach())
        assert output.data_ptr() != x.data_ptr()
        assert x.grad.unique().tolist() == [1.0 if output.detach().equal(x.detach()) else 0.0]


def test_seeds_and_streams():
    x = normal(1000)

    def rounded(**options):
        leaf = x.clone().requires_grad_()
        actcore.round_to_levels(leaf, "gelu", LEVELS, **options).sum().backward()
        return leaf.grad

    assert torch.equal(rounded(seed=1, stream=2), rounded(seed=1, stream=2))
    assert not torch.equal(rounded(seed=1, stream=2), rounded(seed=1, stream=3))
    assert not torch.equal(rounded(seed=1, stream=2), rounded(seed=2, stream=2))
    torch.manual_seed(0)
    first = rounded()
    assert not torch.equal(first, rounded())
    torch.manual_seed(0)
    assert torch.equal(first, rounded())


@pytest.mark.parametrize("numel", [32_769, 100_003])
def test_threads_change_nothing(set_threads, numel):
    x = normal(numel)
    x[::5000] = math.nan
    levels = torch.tensor(LEVELS)
    set_threads(1)
    expected = ops.level_codes(x, x, levels, 3, 1, 2, None, "nan")
    for threads in (2, 3):
        set_threads(threads)
        assert torch.equal(ops.level_codes(x, x, levels, 3, 1, 2, None, "nan"), expected)


def layer(x, seed=3):
    return actcore.round_to_levels(x, "gelu", LEVELS, seed=seed)


def test_derivatives_and_transforms():
    x = normal(2 * 1500, torch.float64).view(2, 1500)
    leaves = [one.clone().requires_grad_() for one in x]
    level = torch.stack([torch.autograd.grad(layer(leaf).sum(), leaf)[0] for leaf in leaves])
    assert torch.equal(torch.func.grad(lambda x: layer(x).sum())(x[0]), level[0])
    assert torch.equal(torch.func.vmap(torch.func.grad(lambda x: layer(x).sum()))(x), level)
    assert torch.equal(torch.func.vmap(layer)(x), torch.nn.functional.gelu(x))
    gradient = normal(1500, torch.float64, seed=1).requires_grad_()
    (first,) = torch.autograd.grad(layer(leaves[0]), leaves[0], gradient, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), gradient)
    assert torch.equal(second, level[0])
    # Noise of torch's generator: one for all samples, or one each.
    same = torch.func.vmap(lambda x: torch.func.grad(lambda x: layer(x, None).sum())(x), randomness="same")
    rows = same(x[:1].repeat(2, 1))
    assert torch.equal(rows[0], rows[1])
    each = torch.func.vmap(lambda x: torch.func.grad(lambda x: layer(x, None).sum())(x), randomness="different")
    rows = each(x[:1].repeat(2, 1))
    assert not torch.equal(rows[0], rows[1])


def test_vmap_of_the_raw_operator():
    x = normal(3 * 40).view(3, 40)
    levels = torch.tensor(LEVELS)
    codes = torch.func.vmap(lambda x: ops.level_codes(x, x, levels, 3, 1, 2, None, "nan"))(x)
    assert torch.equal(codes, torch.stack([ops.level_codes(one, one, levels, 3, 1, 2, None, "nan") for one in x]))


@pytest.mark.parametrize("function", ["gelu", wave])
def test_compiled(function):
    def layer(x):
        return actcore.round_to_levels(x, function, LEVELS, seed=3)

    x = normal(3000).view(30, 100)
    mine, compiled = x.clone().requires_grad_(), x.clone().requires_grad_()
    layer(mine).square().sum().backward()
    torch.compiler.reset()
    torch.compile(lambda x: layer(x).square().sum(), fullgraph=True, backend="aot_eager")(compiled).backward()
    assert torch.equal(mine.grad, compiled.grad)


def test_compiled_under_hooks():
    """torch.func does not work there; the derivatives of functions with names need it not."""
    x = normal(3000).requires_grad_()
    (expected,) = torch.autograd.grad(layer(x).sum(), x)
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        output = compiled(x)
    (got,) = torch.autograd.grad(output.sum(), x)
    assert torch.equal(got, expected)


def test_memory_orders():
    x = normal(2 * 3 * 4 * 4).view(2, 3, 4, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
    (got,) = torch.autograd.grad(layer(x).sum(), x)
    same = x.detach().permute(0, 2, 3, 1).requires_grad_()
    (expected,) = torch.autograd.grad(layer(same).sum(), same)
    assert torch.equal(got, expected.permute(0, 3, 1, 2))


@every_dtype
def test_opcheck(dtype):
    x = normal(1035, dtype).view(5, 207)
    levels = table(8, dtype)
    torch.library.opcheck(ops.level_codes.default, (x, x, levels, 3, 1, -2))
    torch.library.opcheck(ops.level_codes.default, (x, x, levels, 3, 1, -2, torch.tensor([4]), "nonfinite"))
