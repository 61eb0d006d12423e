"""``group_affine_clamped_compress``: what clamping and compressing give, bit for bit, without the clamped tensor."""

import pytest
import torch

import actcore
from actcore import reference

from .samples import DTYPES, hard_ranges, name_of, normal, not_finite

BOUNDS = [(-5.0, 5.0), (-0.3, 0.7), (-10.0, 0.0), (0.1, 0.1), (2.0, 3.0)]
clamped = torch.ops.actcore.group_affine_clamped_compress


def agree(x, bits, least, most, stochastic=True, group_size=96):
    found = clamped(x, bits, group_size, stochastic, 5, 7, least, most)
    for other in (
        reference.group_affine_clamped_compress(x, bits, group_size, stochastic, 5, 7, least, most),
        torch.ops.actcore.group_affine_compress(x.clamp(least, most), bits, group_size, stochastic, 5, 7),
    ):
        for one, expected in zip(found, other, strict=True):
            assert torch.equal(one.nan_to_num(-77.0), expected.nan_to_num(-77.0))
            assert torch.equal(one.isnan(), expected.isnan())


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_it_is_what_clamping_first_gives(dtype, bounds):
    for numel in (0, 1, 2, 31, 95, 96, 97, 1000):
        agree(normal(numel, dtype), 4, *bounds)
    for x in (hard_ranges(dtype) | not_finite(dtype)).values():
        for stochastic in (True, False):
            agree(x, 5, *bounds, stochastic)


@pytest.mark.parametrize("bits", range(1, 9))
def test_all_widths(bits):
    agree(normal(5000, torch.float32), bits, -1.0, 1.5, group_size=256)


def test_infinities_lie_at_the_bounds_and_nan_stays():
    x = normal(512, torch.float32)
    x[3], x[4], x[300] = torch.inf, -torch.inf, torch.nan
    agree(x, 8, -2.0, 2.0, group_size=256)
    codec = actcore.GroupAffine(8)
    value = codec.decompress(codec.compress_clamped(x, -2.0, 2.0))
    assert value[3] == 2
    assert value[4] == -2
    assert value.isnan().nonzero().tolist() == [[300]]


@pytest.mark.parametrize("shape", [(64, 64), (3,), (0,)])
def test_the_codec_stores_the_same_with_and_without_its_own_clamp(shape):
    """Transposed and tiny tensors, and keys that are tensors, are clamped first."""
    codec = actcore.GroupAffine(4, 64)
    x = torch.randn(shape, requires_grad=True)
    for given in (x, x.t() if x.dim() == 2 else x):
        for key in (7, torch.tensor([7])):
            stored = codec.compress_clamped(given, -0.5, 0.25, seed=3, stream=key)
            expected = codec.compress(given.clamp(-0.5, 0.25), seed=3, stream=key)
            assert stored.codec == expected.codec
            assert stored.layout == expected.layout
            assert torch.equal(stored.decompress(), expected.decompress())
            assert not stored.decompress().requires_grad


@pytest.mark.parametrize(("least", "most"), [(1.0, 0.5), (-torch.inf, 1.0), (0.0, torch.nan)])
@pytest.mark.parametrize("shape", [(64, 64), (3,)])  # with a kernel of its own, and without
def test_bounds_that_are_none_are_refused(least, most, shape):
    with pytest.raises(ValueError, match=f"least and most must be finite, .* got {least} and {most}"):
        actcore.GroupAffine(4).compress_clamped(torch.zeros(shape), least, most)
