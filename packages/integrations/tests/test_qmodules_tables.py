"""The steps that stand for the derivatives of smooth activations."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from integrations.qmodules.tables import table

FUNCTIONS = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


def squared_error(function, boundaries, levels):
    """Of the derivative, the mean over -10 to 10."""
    x = torch.linspace(-10, 10, 100_001, dtype=torch.float64).requires_grad_()
    (slope,) = torch.autograd.grad(FUNCTIONS[function](x).sum(), x)
    found = torch.tensor(levels, dtype=torch.float64)[torch.bucketize(x, torch.tensor(boundaries).double(), right=True)]
    return (found - slope).square().mean().item()


def test_the_published_table_is_found():
    """GELU's of 3 bits, printed with three digits."""
    published = (
        (-2.417, -0.710, -0.326, 0.0, 0.326, 0.710, 2.414),
        (0.0, -0.088, 0.126, 0.372, 0.628, 0.874, 1.088, 1.0),
    )
    boundaries, levels = table("gelu", 3)
    assert boundaries == pytest.approx(published[0], abs=0.03)
    assert levels == pytest.approx(published[1], abs=0.01)
    assert squared_error("gelu", boundaries, levels) <= 1.01 * squared_error("gelu", *published)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_tables_ascend_and_a_bit_more_is_worth_a_factor_of_three(function):
    """Of four, as for every quantiser of many levels, less what one whose intervals share a boundary's value loses."""
    errors = []
    for bits in range(1, 9):
        boundaries, levels = table(function, bits)
        assert list(boundaries) == sorted(set(boundaries))
        assert (len(boundaries), len(levels)) == (2**bits - 1, 2**bits)
        errors.append(squared_error(function, boundaries, levels))
    assert all(3 * fine < coarse for coarse, fine in pairwise(errors[2:]))
