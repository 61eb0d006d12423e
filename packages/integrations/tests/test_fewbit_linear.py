"""``RandomizedLinear``: exact in all but the weight's gradient, which is right on average, and what it keeps."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import actcore
from integrations.fewbit import LinearCRS, LinearGRP, RandomizedLinear, functional
from integrations.fewbit.sketches import KINDS, storage
from integrations.fewbit.variance import linear_grad_weight_variance

from .nets import normal
from .qnets import kept_bytes, step

KEY = 16  # bytes of a sketch's seed and stream


def layer(kind="gaussian", inputs=12, outputs=6, **options):
    torch.manual_seed(0)
    options = {"proj_dim_ratio": 0.25, **options}
    return RandomizedLinear(inputs, outputs, matmul=kind, **options)


def plain_of(randomized):
    return randomized.to_linear()


def gradient(module, x, y):
    return torch.autograd.grad(module(x), module.weight, y)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_mean_weight_gradient_over_1024_sketches_is_the_exact_one(kind):
    """64 copies of a batch, one for each block, in 16 forwards: the gradient is the sum of 64 sketches' own. The mean's
    error is at most 4 standard errors in the Euclidean norm; its square has the mean of 1."""
    x, y = normal(40, 12, seed=1), normal(40, 6, seed=2)
    y[:, :6] += x[:, :6]
    one = layer(kind, proj_dim=10, proj_dim_ratio=None, block_size=None)
    module = layer(kind, proj_dim=640, proj_dim_ratio=None, block_size=40)
    mean = sum(gradient(module, x.repeat(64, 1), y.repeat(64, 1)) for _ in range(16)) / 1024
    standard_error = (linear_grad_weight_variance(one, x, y) / 1024).sqrt()
    distance = (mean - y.t() @ x).norm()
    assert distance <= 4 * standard_error
    assert distance >= standard_error / 4  # it is sketched at all
    # The test would notice an error of a tenth of the gradient.
    assert 4 * standard_error < 0.3 * (y.t() @ x).norm()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(40, 12), (5, 8, 12), (2, 4, 5, 12)])
def test_all_but_the_weights_gradient_is_torchs(kind, bias, shape):
    module, x = layer(kind, bias=bias), normal(*shape)
    expected, gradients = step(plain_of(module), x)
    output, found = step(module, x)
    assert torch.equal(output, expected)
    assert torch.equal(found[0], gradients[0])
    assert not torch.equal(found[1], gradients[1])
    if bias:  # sums of 40 numbers in another order
        torch.testing.assert_close(found[2], gradients[2], rtol=0, atol=40 * 2**-24 * 10)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sketch_as_large_as_its_input_is_the_input(kind):
    for options in ({"proj_dim_ratio": 1.0}, {"proj_dim_ratio": None, "proj_dim": 1000}, {"proj_dim_min": 40}):
        module, x = layer(kind, **options), normal(40, 12)
        for expected, found in zip(step(plain_of(module), x)[1], step(module, x)[1], strict=True):
            assert torch.equal(found, expected)


def test_rows_of_the_sketch():
    def rows(tokens, **options):
        return layer(**options).sketching.rows(tokens)

    assert rows(3, proj_dim_ratio=0.1) == 1  # never none
    assert rows(1000, proj_dim_ratio=0.1) == 100
    assert rows(1000, proj_dim_ratio=0.1, proj_dim_max=64) == 64
    assert rows(30, proj_dim_ratio=0.1, proj_dim_min=5) == 5
    assert rows(3, proj_dim_ratio=0.1, proj_dim_min=5) == 3  # never more than tokens
    assert rows(1000, proj_dim_ratio=None, proj_dim=7) == 7


@pytest.mark.parametrize("kind", KINDS)
def test_keeps_the_sketch_and_its_key_alone(kind):
    x = normal(4, 25, 12)
    indices = 25 * 8 if kind == "rows" else KEY
    assert kept_bytes(layer(kind)(x), x) == 25 * 12 * 4 + indices
    leaf = normal(4, 25, 12).requires_grad_()
    weights = 25 * 4 if kind == "rows" else 0  # of the sampled tokens, for second derivatives
    assert kept_bytes(layer(kind)(leaf), leaf) == 25 * 12 * 4 + indices + weights
    for dtype in (torch.bfloat16, torch.float16):
        factors = 25 * 4 if dtype is torch.float16 else 0  # one for each row
        module, half = layer(kind, dtype=dtype), x.to(dtype)
        assert kept_bytes(module(half), half) == 25 * 12 * 2 + factors + indices


def test_keeps_few_bits_of_the_sketch():
    """With 4 bits: half a byte an element, and two bounds of 4 bytes for each group of 256."""
    x = normal(512, 64)
    module = layer(inputs=64, bits=4)
    assert kept_bytes(module(x), x) == 128 * 64 // 2 + 128 * 64 // 256 * 8 + KEY
    y = normal(512, 6, seed=4)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        rounded = gradient(module, x, y)
        module.sketching = layer(inputs=64).sketching
        torch.manual_seed(3)
        exact = gradient(module, x, y)
    # A group of 256 near-normal numbers spans at most 8 of their deviations: a step of 4 bits is 8 / 15 of one, and a
    # rounding's deviation at most half of it.
    assert 0 < (rounded - exact).norm() / exact.norm() < 8 / 15 / 2


def test_rounding_to_bits_is_unbiased_too():
    """As the mean of sketches, of which it is 1,024; the rounding of 8 bits adds a hundredth to their deviation."""
    x, y = normal(40, 12, seed=1), normal(40, 6, seed=2)
    one = layer(proj_dim=10, proj_dim_ratio=None, block_size=None)
    module = layer(proj_dim=640, proj_dim_ratio=None, block_size=40, bits=8)
    mean = sum(gradient(module, x.repeat(64, 1), y.repeat(64, 1)) for _ in range(16)) / 1024
    assert (mean - y.t() @ x).norm() <= 4 * (linear_grad_weight_variance(one, x, y) / 1024).sqrt()


def test_frozen_weight_keeps_nothing_but_it():
    module, x = layer(), normal(40, 12).requires_grad_()
    module.weight.requires_grad_(False)
    assert kept_bytes(module(x), module.weight) == 0
    module.bias.requires_grad_(False)
    module(x).sum().backward()
    torch.testing.assert_close(x.grad, module.weight.sum(0).expand(40, 12))


def test_an_input_without_gradient_keeps_no_weight():
    module = layer()
    output = module(normal(40, 12))  # up to torch 2.11 the saved tensors go with it
    saved = output.grad_fn.saved_tensors
    assert all(tensor.data_ptr() != module.weight.data_ptr() for tensor in saved if tensor is not None)


def test_without_training_or_gradients_it_is_torchs():
    module, x = layer(), normal(40, 12)
    state = torch.get_rng_state()
    module.eval()
    assert torch.equal(gradient(module, x, normal(40, 6)), gradient(plain_of(module), x, normal(40, 6)))
    module.train()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert module(x).grad_fn is None
    assert torch.equal(torch.get_rng_state(), state)  # nothing was drawn


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(kind, dtype):
    """The sketch of the same key, of the same values in float64: what is left is the rounding of what is stored and of
    the gradient, each at most half a unit in the last place of their largest numbers."""
    x, y = normal(64, 12).to(dtype), normal(64, 6, seed=3).to(dtype)
    weight = normal(6, 12, seed=4).to(dtype).requires_grad_()
    double = weight.detach().double().requires_grad_()
    found = torch.autograd.grad(functional.linear_grp(x, weight, None, 0.5, matmul=kind, seed=1), weight, y)[0]
    output = functional.linear_grp(x.double(), double, None, 0.5, matmul=kind, seed=1)
    expected = torch.autograd.grad(output, double, y.double())[0]
    assert found.dtype == dtype
    unit = max(torch.finfo(dtype).eps, 2**-23 if kind == "gaussian" else 0)
    assert (found - expected).abs().max() <= 8 * unit * expected.abs().max()


@pytest.mark.parametrize("kind", KINDS)
def test_large_half_precision_values_do_not_overflow_in_the_sketch(kind):
    """Sums of 256 numbers up to float16's largest; the exact gradient fits, and so does the sketched one."""
    x = torch.full((256, 12), 60000.0, dtype=torch.float16)
    module = layer(kind, dtype=torch.float16)
    found = gradient(module, x, torch.full((256, 6), 1e-4, dtype=torch.float16))
    assert found.isfinite().all()
    # Equal rows of a rank-one gradient: the sketch's deviation is at most sqrt(2 / k) of it, k = 64; five of these.
    assert (found / (60000 * 1e-4 * 256) - 1).abs().max() < 5 * (2 / 64) ** 0.5


def test_small_half_precision_values_do_not_vanish_in_the_sketch():
    x = torch.full((256, 12), 2.0**-22, dtype=torch.float16)  # one bit and a half are left of them
    found = gradient(layer("rademacher", dtype=torch.float16), x, torch.full((256, 6), 2.0**12, dtype=torch.float16))
    assert (found / (2.0**-10 * 256) - 1).abs().max() < 5 * (2 / 64) ** 0.5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", ["input", "gradient"])
def test_what_is_not_finite_shows_in_the_weights_gradient(kind, value, where):
    x, y = normal(400, 12), normal(400, 6, seed=3)
    (x if where == "input" else y)[123, 4] = value
    module = layer(kind, proj_dim_ratio=0.02)
    exact = y.t() @ x
    found = gradient(module, x, y)
    assert not found[~exact.isfinite()].isfinite().any()
    torch.testing.assert_close(module(x), plain_of(module)(x), rtol=0, atol=0, equal_nan=True)


def test_rows_show_what_is_not_finite_beside_zeros_alone():
    """No token has a finite norm above 0 to be sampled by."""
    x = torch.zeros(40, 12)
    x[3, 4] = float("nan")
    assert gradient(layer("rows"), x, normal(40, 6)).isnan().all()


def test_rounding_draws_from_another_stream_than_the_sketch():
    sketch, key = normal(20, 64), torch.tensor([3, 4])
    codes, bounds = storage(torch.float32, 4, key).compress(sketch, seed=9, stream=9).payload
    stream = 4 ^ actcore.stream_of("rounding of a sketch", 0, 0) >> 1
    expected = actcore.GroupAffine(4).compress(sketch, seed=3, stream=stream).payload
    assert torch.equal(codes, expected[0])
    assert torch.equal(bounds, expected[1])


def test_sampled_features():
    module, x = LinearCRS(12, 6, proj_dim=4), normal(5, 8, 12)
    expected, gradients = step(module.to_linear(), x)
    output, found = step(module, x)
    assert torch.equal(output, expected)
    assert torch.equal(found[0], gradients[0])
    kept = (found[1] != 0).all(0)
    assert kept.sum() == 4
    torch.testing.assert_close(found[1][:, kept], gradients[1][:, kept] * 3)
    assert (found[1][:, ~kept] == 0).all()
    assert kept_bytes(module(x), x) == 40 * 4 * 4 + 4 * 8


def test_sampled_features_are_unbiased():
    """Each of 12 columns is kept in a third of 1,024 forwards: four standard deviations of a share."""
    module, x, y = LinearCRS(12, 6, proj_dim=4, seed=0), normal(3, 12), normal(3, 6, seed=2)
    exact = y.t() @ x
    mean = sum(gradient(module, x, y) for _ in range(1024)) / 1024
    assert ((mean / exact) - 1).abs().max() <= 4 * (2 / 1024) ** 0.5  # a share of 1/3, times 3, has variance 2


def test_names_and_functions():
    assert LinearGRP is RandomizedLinear
    assert functional.linear_grp is functional.linear_randomized
    x, weight, bias = normal(9, 12), normal(6, 12), normal(6)
    assert torch.equal(functional.linear_randomized(x, weight, bias, proj_dim=2), F.linear(x, weight, bias))
    assert torch.equal(functional.linear_crs(x, weight, bias, 3), F.linear(x, weight, bias))
    assert repr(RandomizedLinear(3, 2, proj_dim_ratio=0.1, bits=4)) == (
        "RandomizedLinear(in_features=3, out_features=2, bias=True, proj_dim_ratio=0.1, matmul=gaussian, "
        "block_size=1024, bits=4)"
    )


def test_from_linear_shares_parameters_and_hooks():
    linear, calls = nn.Linear(12, 6), []
    hook = linear.register_forward_hook(lambda *_: calls.append(1))
    for kind, options in ((RandomizedLinear, {"proj_dim_ratio": 0.1, "matmul": "dct"}), (LinearCRS, {"proj_dim": 3})):
        made = kind.from_linear(linear, **options)
        assert made.weight is linear.weight
        assert made.bias is linear.bias
        made(normal(20, 12))
        back = made.to_linear()
        assert type(back) is nn.Linear
        assert back.__dict__.keys() == linear.__dict__.keys()
    assert len(calls) == 2
    hook.remove()
    made(normal(20, 12))
    assert len(calls) == 2
    with pytest.raises(TypeError, match="not a subclass, got RandomizedLinear"):
        RandomizedLinear.from_linear(layer(), proj_dim=1)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({}, ValueError, "either proj_dim_ratio or proj_dim must give .*got neither"),
        ({"proj_dim": 3, "proj_dim_ratio": 0.1}, ValueError, "got proj_dim_ratio=0.1 and proj_dim=3"),
        ({"proj_dim_ratio": 0}, ValueError, "above 0 and at most 1"),
        ({"proj_dim_ratio": 1.5}, ValueError, "above 0 and at most 1.*got 1.5"),
        ({"proj_dim_ratio": float("nan")}, ValueError, "got nan"),
        ({"proj_dim_ratio": "0.1"}, TypeError, "must be a number"),
        ({"proj_dim": 0}, ValueError, "proj_dim must be at least 1, got 0"),
        ({"proj_dim": 2.0}, TypeError, "proj_dim must be an int"),
        ({"proj_dim": 2, "proj_dim_min": 4, "proj_dim_max": 3}, ValueError, "got 4 and 3"),
        ({"proj_dim": 2, "matmul": "fft"}, ValueError, "gaussian, rademacher, dct, dft, rows, got 'fft'"),
        ({"proj_dim": 2, "block_size": 0}, ValueError, "block_size must be at least 1"),
        ({"proj_dim": 2, "bits": 9}, ValueError, "bits must be from 1 to 8"),
        ({"proj_dim": 2, "bits": 2.5}, TypeError, "bits must be an int"),
        ({"proj_dim": 2, "seed": 0.5}, TypeError, "seed must be an int"),
        ({"proj_dim": 2, "generator": 3}, TypeError, "generator must be a torch.Generator"),
        ({"proj_dim": 2, "seed": 1, "generator": torch.Generator()}, ValueError, "not both"),
    ],
)
def test_errors(options, error, text):
    with pytest.raises(error, match=text):
        RandomizedLinear(3, 2, **options)
    with pytest.raises(error, match=text):
        functional.linear_randomized(normal(4, 3), normal(2, 3), **options)


def test_errors_of_sampled_features():
    with pytest.raises(ValueError, match="proj_dim must be at least 1"):
        LinearCRS(3, 2, proj_dim=0)
    with pytest.raises(TypeError, match="nopairs must be an int"):
        functional.linear_crs(normal(4, 3), normal(2, 3), None, 2.0)
