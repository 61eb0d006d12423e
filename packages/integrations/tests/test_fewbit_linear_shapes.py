"""Shapes that a randomized layer is given: few tokens, strides, and what is no linear layer's."""

import pytest
import torch
import torch.nn.functional as F

from integrations.fewbit import functional
from integrations.fewbit.sketches import KINDS

from .nets import normal
from .qnets import step
from .test_fewbit_linear import gradient, layer, plain_of

SAMPLERS = {
    **{
        kind: lambda x, w, b=None, kind=kind: functional.linear_randomized(x, w, b, proj_dim=4, matmul=kind)
        for kind in KINDS
    },
    "crs": lambda x, w, b=None: functional.linear_crs(x, w, b, 4),
}
# Of the input, the weight and the bias.
OTHERS = [
    ((40, 12), (12,)),
    ((5, 8, 12), (12,)),
    ((40, 12), (6, 12), (40, 6)),
    ((40, 12), (0, 12)),
]


@pytest.mark.parametrize("kind", KINDS)
def test_one_token_and_none(kind):
    module = layer(kind)
    for x in (normal(12), normal(1, 12), normal(0, 12), normal(3, 0, 12)):
        for expected, found in zip(step(plain_of(module), x)[1], step(module, x)[1], strict=True):
            assert torch.equal(found, expected)


def test_transposed_and_expanded_inputs():
    x = normal(12, 8, 5).transpose(0, 2)
    module = layer()
    assert torch.equal(module(x), plain_of(module)(x))
    torch.manual_seed(1)
    found = gradient(module, x, torch.ones(()).expand(5, 8, 6))
    torch.manual_seed(1)
    assert torch.equal(found, gradient(module, x.contiguous(), torch.ones(5, 8, 6)))


@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize("shapes", OTHERS)
def test_shapes_that_are_no_linear_layers_are_torchs(kind, shapes):
    """A vector as weight, for one, whose gradient was another, without an error."""
    x, *given = (normal(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes))
    expected, output = F.linear(x, *given), SAMPLERS[kind](x, *given)
    assert torch.equal(output, expected)
    y = normal(*expected.shape, seed=3)
    for found, right in zip(
        torch.autograd.grad(output, [x, *given], y), torch.autograd.grad(expected, [x, *given], y), strict=True
    ):
        assert torch.equal(found, right)


@pytest.mark.parametrize("kind", SAMPLERS)
def test_an_input_without_dimensions_raises_torchs_error(kind):
    with pytest.raises(RuntimeError, match="at least 1D"):
        SAMPLERS[kind](torch.tensor(1.0), normal(6, 12).requires_grad_())
