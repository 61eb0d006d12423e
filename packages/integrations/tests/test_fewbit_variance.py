"""The variance estimators, beside enumeration and beside measured gradients."""

import itertools

import pytest
import scipy.fft
import torch
from torch import nn

from integrations.fewbit import RandomizedLinear, VarianceEstimator
from integrations.fewbit.sketches import KINDS, project, sample_tokens
from integrations.fewbit.variance import (
    estimate_correlation,
    estimate_variance_rmm,
    estimate_variance_sgd,
    linear_grad_weight_variance,
)

from .nets import normal

COPIES = 64


def pair(tokens, seed=0):
    """An input and a gradient that go together, with tokens of very different norms."""
    x = normal(tokens, 3, seed=seed, dtype=torch.float64) * torch.linspace(0.1, 2, tokens).double()[:, None]
    return x, x[:, :2] + normal(tokens, 2, seed=seed + 1, dtype=torch.float64)


def estimates(x, y, k, kind, block_size, calls):
    """Sketched gradients: those of 64 copies of the pair, which have sketches of their own, in each call."""
    tokens = x.shape[0]
    many_x, many_y = x.repeat(COPIES, 1), y.repeat(COPIES, 1)
    for call in range(calls):
        key = torch.tensor([call, 8])
        if kind == "rows":  # equal copies: any k of the draws are a sample of one
            at, weights = sample_tokens(many_x, key, COPIES * k)
            a, b = many_x[at] * weights[:, None], many_y[at]
        else:
            a, b = (project(m, key, kind, COPIES * k, block_size or tokens) for m in (many_x, many_y))
        yield from a.view(COPIES, k, -1).mT @ b.view(COPIES, k, -1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("tokens", "k", "block_size"), [(16, 5, None), (15, 5, None), (24, 8, 12)])
def test_measured_variance_is_the_estimate(kind, tokens, k, block_size):
    """Over 2,048 sketches. A squared error's own deviation is about its mean here, so 10 % is over four of theirs."""
    x, y = pair(tokens)
    error = torch.stack(list(estimates(x, y, k, kind, block_size, 32))) - x.t() @ y
    measured = error.square().sum((1, 2)).mean()
    assert abs(measured / estimate_variance_rmm(x, y, k, kind, block_size) - 1) < 0.1


@pytest.mark.parametrize("tokens", [5, 6])
@pytest.mark.parametrize("kind", ["rademacher", "dct", "dft"])
def test_the_estimate_is_that_of_every_possible_sketch(kind, tokens):
    """All signs, and all choices of rows: the sum over them is exact but for rounding in float64."""
    x, y = pair(tokens)
    identity = torch.eye(tokens, dtype=torch.float64)
    spectrum = torch.fft.fft(identity, dim=0, norm="ortho")
    cosines = torch.from_numpy(scipy.fft.dct(identity.numpy(), axis=0, norm="ortho"))
    transform = cosines if kind == "dct" else spectrum.real - spectrum.imag
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=tokens))).double()
    k = 1 if kind == "rademacher" else 2
    if kind == "rademacher":
        sketches = signs[:, None, :]
    else:
        choices = list(itertools.combinations(range(tokens), k))
        sketches = torch.cat([transform[list(rows)] * signs[:, None, :] for rows in choices]) * (tokens / k) ** 0.5
    found = (sketches @ x).mT @ (sketches @ y)
    torch.testing.assert_close(found.mean(0), x.t() @ y)
    variance = (found - x.t() @ y).square().sum((1, 2)).mean()
    torch.testing.assert_close(estimate_variance_rmm(x, y, k, kind), variance)


def test_rows_are_those_of_every_token():
    x, y = pair(6)
    share = x.norm(dim=1) / x.norm(dim=1).sum()
    found = x[:, :, None] * y[:, None, :] / share[:, None, None]  # what a single draw of each token gives
    variance = (share * (found - x.t() @ y).square().sum((1, 2))).sum() / 3
    torch.testing.assert_close(estimate_variance_rmm(x, y, 3, "rows"), variance)


def test_variance_of_samples_and_correlation():
    x, y = pair(20)
    products = x[:, :, None] * y[:, None, :]
    torch.testing.assert_close(estimate_variance_sgd(x, y), 20 * products.var(0).sum())
    torch.testing.assert_close(estimate_variance_sgd(x.view(4, 5, 3), y.view(4, 5, 2)), estimate_variance_sgd(x, y))
    assert estimate_variance_sgd(x[:1], y[:1]).isnan()
    cosine = (x.t() @ y).norm() / (x.norm() * y.norm())
    torch.testing.assert_close(estimate_correlation(x, y), cosine**2)
    torch.testing.assert_close(estimate_correlation(x[:, :1], -3 * x[:, :1]).item(), 1.0)


def test_no_sketch_has_no_variance():
    x, y = pair(8)
    for kind in KINDS:
        assert estimate_variance_rmm(x, y, 8, kind) == 0
    assert linear_grad_weight_variance(RandomizedLinear(3, 2, proj_dim=4), x[:0], y[:0]) == 0


def test_estimator_reports_each_backward():
    x, _ = pair(40)
    x = x.float()
    layer, seen = RandomizedLinear(3, 2, proj_dim_ratio=0.5, matmul="dct", block_size=10), []
    model = VarianceEstimator(layer, lambda *found: seen.append(found))
    with pytest.raises(RuntimeError, match="no gradient was seen"):
        _ = model.variance
    for scale in (1.0, 2.0):
        output = model(x)
        (scale * output.square().sum()).backward()
        y = 2 * scale * output.detach()
        expected = (
            estimate_correlation(x, y).item(),
            estimate_variance_sgd(x, y).item(),
            estimate_variance_rmm(x, y, 20, "dct", 10).item(),
        )
        assert model.variance == expected
        assert linear_grad_weight_variance(layer, x, y).item() == expected[2]
    assert [found[3] for found in seen] == [0, 1]
    assert seen[1][:3] == model.variance
    model.eval()(x).sum().backward()
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: VarianceEstimator(nn.Linear(2, 2)), TypeError, "must be a RandomizedLinear, got Linear"),
        (lambda: VarianceEstimator(RandomizedLinear(2, 2, proj_dim=1), 3), TypeError, "callback must be callable"),
        (lambda: linear_grad_weight_variance(nn.Linear(2, 2), None, None), TypeError, "layer must be"),
        (lambda: estimate_variance_sgd(torch.ones(3, 2), torch.ones(4, 2)), ValueError, "same dimensions"),
        (lambda: estimate_variance_rmm(torch.ones(3, 2), torch.ones(3, 2), 0), ValueError, "proj_dim must be at least"),
        (
            lambda: estimate_variance_rmm(torch.ones(3, 2), torch.ones(3, 2), 2, "fft"),
            ValueError,
            "matmul must be one of",
        ),
        (lambda: estimate_correlation(torch.ones(()), torch.ones(3)), ValueError, "at least one dimension"),
    ],
)
def test_errors(call, error, text):
    with pytest.raises(error, match=text):
        call()
