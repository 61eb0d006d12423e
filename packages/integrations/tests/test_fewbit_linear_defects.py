"""The defects of FewBit's randomized layers (reference A7): each a test that fails where it comes back."""

import pytest
import torch
from torch import nn

from integrations.fewbit import LinearCRS, RandomizedLinear, VarianceEstimator
from integrations.fewbit.functional import linear_grp
from integrations.fewbit.sketches import KINDS, lift, project
from integrations.fewbit.variance import estimate_variance_rmm, linear_grad_weight_variance

from .nets import normal
from .qnets import kept_bytes


def gradient(module, x, y):
    return torch.autograd.grad(module(x), module.weight, y)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_ratio_of_few_tokens_gave_no_rows_and_a_silent_zero_gradient(kind):
    found = gradient(RandomizedLinear(5, 4, proj_dim_ratio=0.1, matmul=kind), normal(3, 5), normal(3, 4))
    assert (found != 0).all()


def test_sketch_could_be_larger_than_its_input():
    module, x = RandomizedLinear(5, 4, proj_dim=64), normal(8, 5)
    assert kept_bytes(module(x), x) == 0  # the input itself, no 64 rows


def test_missing_size_was_found_in_forward():
    with pytest.raises(ValueError, match="either proj_dim_ratio or proj_dim must give"):
        RandomizedLinear(5, 4)


@pytest.mark.parametrize("rows", [16, 32])
def test_dct_was_too_large_by_the_square_of_its_rows(rows):
    """The mean of ``S^T S`` over 512 sketches is 1, on the diagonal within four deviations of it."""
    keys = [torch.tensor([seed, 0]) for seed in range(512)]
    identity = torch.eye(64)
    diagonal = torch.stack([project(identity, key, "dct", rows, None).square().sum(0) for key in keys])
    assert (diagonal.mean(0) - 1).abs().max() < 4 * diagonal.std() / 512**0.5


def test_dft_backward_raised_and_took_the_real_part_of_one_factor():
    x = normal(32, 5, dtype=torch.float64)
    key = torch.tensor([1, 2])
    sketch = project(x, key, "dft", 32, None)
    assert sketch.dtype == torch.float64
    torch.testing.assert_close(lift(sketch, key, "dft", 32, None), x)  # orthonormal, with all its rows
    assert gradient(RandomizedLinear(5, 4, proj_dim=8, matmul="dft"), normal(32, 5), normal(32, 4)).isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes_other_than_float32_raised(kind, dtype):
    module = RandomizedLinear(5, 4, proj_dim=8, matmul=kind, dtype=dtype)
    assert gradient(module, normal(32, 5).to(dtype), normal(32, 4).to(dtype)).dtype == dtype


@pytest.mark.parametrize("kind", KINDS)
def test_backward_of_autocast_raised(kind):
    module = RandomizedLinear(5, 4, proj_dim=8, matmul=kind)
    with torch.autocast("cpu", torch.bfloat16):
        output = module(normal(32, 5))
    output.sum().backward()
    assert module.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("kind", KINDS)
def test_transposed_input_raised(kind):
    module, x = RandomizedLinear(5, 4, proj_dim=8, matmul=kind), normal(8, 4, 5).transpose(0, 1)
    module(x).sum().backward()
    assert module.weight.grad.isfinite().all()


def test_every_layer_and_step_had_the_same_sketch():
    """On CUDA the default generator was a new one in each call, with one constant seed."""
    one, two = RandomizedLinear(5, 4, proj_dim=8), RandomizedLinear(5, 4, proj_dim=8)
    x, y = normal(32, 5), normal(32, 4)
    found = [gradient(module, x, y) for module in (one, one, two)]
    assert not any(torch.equal(found[a], found[b]) for a, b in ((0, 1), (0, 2), (1, 2)))


def test_kept_5056_bytes_of_a_generators_state_in_each_call():
    module, x = RandomizedLinear(5, 4, proj_dim=8), normal(32, 5)
    assert kept_bytes(module(x), x) == 8 * 5 * 4 + 16


def test_crs_took_proj_dim_for_bias():
    assert LinearCRS(6, 4).bias is not None
    module = LinearCRS(6, 4, bias=False, proj_dim=3)
    assert module.bias is None
    assert module.proj_dim == 3


def test_crs_repr_raised():
    expected = "LinearCRS(in_features=6, out_features=4, bias=True, proj_dim=3)"
    assert repr(LinearCRS(6, 4)) == expected


def test_sampling_had_uniform_probabilities_alone():
    """Tokens sampled by their norm: where one has it all, the gradient is exact."""
    x, y = torch.zeros(32, 5), normal(32, 4)
    x[7] = normal(5)
    found = gradient(RandomizedLinear(5, 4, proj_dim=1, matmul="rows"), x, y)
    torch.testing.assert_close(found, y.t() @ x)


def test_variance_had_the_wrong_sign():
    """A gaussian sketch of one token that is all of the gradient: ``2 (|x| |y|)**2 / k``, and not 0."""
    x, y = torch.zeros(8, 1), torch.zeros(8, 1)
    x[3], y[3] = 2, 3
    assert estimate_variance_rmm(x, y, 4) == 2 * 36 / 4
    assert estimate_variance_rmm(x, y, 4, "rademacher") == 0


def test_estimator_lost_the_variance_of_the_sketch():
    layer = RandomizedLinear(5, 4, proj_dim=8)
    model, x = VarianceEstimator(layer), normal(32, 5)
    model(x).backward(normal(32, 4))
    corr, sgd, rmm = model.variance
    assert len({corr, sgd, rmm}) == 3
    assert rmm == linear_grad_weight_variance(layer, x, normal(32, 4)).item()


def test_conversion_lost_tied_and_frozen_weights():
    linear = nn.Linear(5, 5)
    linear.weight.requires_grad_(False)
    tied = nn.Linear(5, 5)
    tied.weight = linear.weight
    made = [RandomizedLinear.from_linear(layer, proj_dim=2) for layer in (linear, tied)]
    assert made[0].weight is made[1].weight is linear.weight
    assert not made[0].weight.requires_grad


def test_conversion_took_layers_that_are_no_plain_linear():
    for layer in (nn.MultiheadAttention(4, 2).out_proj, RandomizedLinear(4, 4, proj_dim=2)):
        with pytest.raises(TypeError, match="not a subclass"):
            RandomizedLinear.from_linear(layer, proj_dim=2)


def test_a_dense_sketch_cost_the_square_of_the_tokens():
    """65,536 tokens at a tenth: 430 million entries as one matrix, 6.7 million in blocks of 1,024."""
    weight = normal(2, 2).requires_grad_()
    x, y = normal(65536, 2), normal(65536, 2, seed=3)
    found = torch.autograd.grad(linear_grp(x, weight, None, 0.1, matmul="rademacher"), weight, y)[0]
    assert found.isfinite().all()
