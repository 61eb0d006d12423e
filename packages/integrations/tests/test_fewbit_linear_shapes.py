"""Shapes that a randomized layer is given: few tokens, strides, and what is no linear layer's."""

import pytest
import torch
import torch.nn.functional as F

import actcore
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


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_sampled_tokens_in_few_bits(rows):
    """Of any number, and rounded by the key: equal tokens in a row, the one that is not zero, round anew each time."""
    x = torch.zeros(40, 12)
    x[7] = normal(12, seed=3)
    module = layer("rows", proj_dim=rows, proj_dim_ratio=None, bits=2)
    y = normal(40, 6, seed=4)
    torch.manual_seed(1)
    first, second = gradient(module, x, y), gradient(module, x, y)
    torch.manual_seed(1)
    assert torch.equal(gradient(module, x, y), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("kind", KINDS)
def test_rounding_has_noise_of_its_own(kind, monkeypatch):
    """Not that of the sketch of the next forward, whose stream is one more."""
    seen = []
    compress = actcore.GroupAffine.compress
    monkeypatch.setattr(
        actcore.GroupAffine,
        "compress",
        lambda self, tensor, *, seed, stream: (
            seen.append((seed.item(), stream.item())) or compress(self, tensor, seed=seed, stream=stream)
        ),
    )
    module = layer(kind, bits=2, seed=5)
    keys = [tuple(key.tolist()) for key in made_keys(module, monkeypatch)]
    assert len(seen) == len(keys) == 8
    assert len({*seen, *keys}) == 16


def made_keys(module, monkeypatch):
    """The keys of eight forwards."""
    keys = []
    draw = module._key
    monkeypatch.setattr(module, "_key", lambda x: keys.append(draw(x)) or keys[-1])
    for _ in range(8):
        module(normal(40, 12))
    return keys
