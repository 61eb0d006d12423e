"""``has_wide_group``: whether codes would leave nothing of most elements of a group."""

import pytest
import torch

from actcore import reference

from .samples import DTYPES, hard_ranges, name_of, normal, not_finite

GROUP = 96
wide = torch.ops.actcore.has_wide_group


def agree(x, group_size=GROUP):
    found = bool(wide(x, group_size))
    assert found == bool(reference.has_wide_group(x, group_size))
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_it_is_the_reference(dtype):
    for numel in (0, 1, 2, 31, 95, 96, 97, 1000, 4 * 96):
        assert not agree(normal(numel, dtype))
    for x in (hard_ranges(dtype) | not_finite(dtype)).values():
        agree(x)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("lost", [1, 2, 5, 6, 23, 24, 95])
def test_how_many_elements_make_a_group_wide(dtype, lost):
    """As many small ones, beside others of the size of the bounds, at each place in a group and in the last part of
    one: 6 of 96 are a sixteenth, and a quarter of those between the bounds are 24."""
    for others, expected in ((0.5, lost >= 24), (1.0, lost >= 6)):
        for numel in (GROUP, 3 * GROUP):
            x = torch.full((numel,), others, dtype=dtype)
            x[-1], x[-2] = -1.0, 1.0
            x[-GROUP : -GROUP + min(lost, GROUP - 2)] = 1e-3 if dtype in (torch.float16, torch.bfloat16) else 1.9e-3
            assert agree(x) == expected


def test_zeros_and_the_bounds_themselves_are_no_loss():
    assert not agree(torch.tensor([0.0, 1.0] * 100))
    assert not agree(torch.tensor([0.0] * 90 + [-1e9] * 6))
    assert agree(torch.tensor([1e-3, 2e-3] * 45 + [-1e9] * 6))


def test_a_wide_group_is_found_wherever_it_lies():
    """Also where threads share the groups."""
    for numel in (100 * GROUP, (1 << 20) + 5):
        for place in (0, numel // 2, numel - 5):
            x = torch.ones(numel).add_(torch.linspace(0, 1, numel))
            assert not wide(x, GROUP)
            x[place] = -torch.finfo(x.dtype).max
            assert wide(x, GROUP)
